"""duewheel against a table written in ten minutes, on stock settings.

The table is the first that comes to mind: a status, a due instant, a JSON body, and a partial index on
pending rows. A claim is one UPDATE with SKIP LOCKED, done is another, and each commits by itself in one round
trip. Bodies are JSON of 100 bytes, encoded and decoded on both sides. Neither side is vacuumed or analyzed by
hand.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from psycopg2.extensions import connection as Connection  # noqa: N812 - it is a class
from psycopg2.extras import execute_values

from benchmarks import ours, plain_table, workers
from benchmarks.bench import Bench, Step, Subject, side_by_side
from benchmarks.flood import CONSUMERS
from benchmarks.measure import Goal, Row, interleave, percentile, thousands
from benchmarks.messages import Order, chunks, orders
from benchmarks.processes import Desk, crew
from benchmarks.program import main
from benchmarks.server import connect
from duewheel.store import Batch, Broker

HOUR = timedelta(hours=1)
TIMEOUT_SECONDS = 300.0
#: Batches of one measured step, by the size of the batch.
BATCHES_A_STEP = {1_000: 5, 100: 10, 1: 50}

CREATE = """
CREATE TABLE job (
    id         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    status     text        NOT NULL DEFAULT 'pending',
    due_at     timestamptz NOT NULL,
    body       jsonb       NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    done_at    timestamptz
);
CREATE INDEX job_pending ON job (due_at) WHERE status = 'pending';
"""

INSERT = "INSERT INTO job (due_at, body) VALUES (%s, %s)"
INSERT_MANY = "INSERT INTO job (due_at, body) VALUES %s"

CLAIM = """
UPDATE job SET status = 'claimed'
 WHERE id IN (
    SELECT id FROM job
     WHERE status = 'pending' AND due_at <= now()
     ORDER BY due_at
     LIMIT %s
       FOR UPDATE SKIP LOCKED)
RETURNING id, body
"""

DONE = "UPDATE job SET status = 'done', done_at = now() WHERE id = ANY (%s)"


def value(order: Order) -> dict[str, object]:
    """The value that an application would send for an order."""
    return {"order": order.number, "customer": order.key, "state": "unpaid", "note": order.body[:18].hex()}


def text(order: Order) -> str:
    """That as JSON of about 100 bytes."""
    return json.dumps(value(order))


def insert_many(connection: Connection, batch: Sequence[Order]) -> None:
    """Write a batch in one INSERT with many rows."""
    with connection.cursor() as cursor:
        execute_values(
            cursor, INSERT_MANY, [(order.due_at, text(order)) for order in batch], page_size=len(batch)
        )


def insert(connection: Connection, order: Order) -> None:
    """Write one row."""
    with connection.cursor() as cursor:
        cursor.execute(INSERT, (order.due_at, text(order)))


def claim(connection: Connection, size: int) -> list[tuple[int, Any]]:
    """Claim up to `size` due rows; psycopg2 decodes their bodies."""
    with connection.cursor() as cursor:
        cursor.execute(CLAIM, (size,))
        return cursor.fetchall()


def done(connection: Connection, rows: Iterable[tuple[int, Any]]) -> None:
    """Mark claimed rows as done."""
    with connection.cursor() as cursor:
        cursor.execute(DONE, ([row[0] for row in rows],))


def send_many(broker: Broker, batch: Sequence[Order]) -> None:
    """Send a batch in one `send_many`, each message with an instant of its own."""
    broker.send_many(
        ours.TOPIC, [{"body": text(order).encode(), "deliver_at": order.due_at} for order in batch]
    )


def due(count: int, seed: int) -> list[list[Order]]:
    """Loads of messages that came due within an hour that ended an hour ago."""
    return chunks(orders(count, start=ours.now() - 2 * HOUR, within=HOUR, seed=seed), 10_000)


def coming(count: int, seed: int) -> list[Order]:
    """Messages due over the next hour."""
    return orders(count, start=ours.now() + timedelta(minutes=1), within=HOUR, seed=seed)


# -- receive + ack -------------------------------------------------------------------------------------------


@contextmanager
def ours_due(bench: Bench, count: int, seed: int) -> Iterator[str]:
    """A fresh database with `count` messages due."""
    with bench.server.duewheel() as dsn:
        ours.create_topic(dsn)
        at = ours.now() - 2 * HOUR
        with Broker(dsn, clock=lambda: at) as broker:
            for load in due(count, seed):
                send_many(broker, load)
        yield dsn


@contextmanager
def table_due(bench: Bench, count: int, seed: int) -> Iterator[str]:
    """A fresh table with `count` rows due."""
    with bench.server.empty() as dsn, closing(connect(dsn)) as connection:
        with connection.cursor() as cursor:
            cursor.execute(CREATE)
        for load in due(count, seed):
            insert_many(connection, load)
        yield dsn


@contextmanager
def _ours_receiving(bench: Bench, size: int, rounds: int, pair: int) -> Iterator[Step]:
    with ours_due(bench, (rounds + 1) * BATCHES_A_STEP[size] * size, pair) as dsn, Broker(dsn) as broker:
        consumer = broker.consumer(ours.TOPIC, ours.GROUP)

        def step() -> int:
            count = 0
            batch: Batch | tuple[()] = ()
            for _ in range(BATCHES_A_STEP[size]):
                batch = consumer.receive(size, ours.INVISIBLE, acked=batch)
                count += sum(len(json.loads(message.body)) > 0 for message in batch)
            consumer.ack(batch)
            return count

        yield step


@contextmanager
def _table_receiving(bench: Bench, size: int, rounds: int, pair: int) -> Iterator[Step]:
    with (
        table_due(bench, (rounds + 1) * BATCHES_A_STEP[size] * size, pair) as dsn,
        closing(connect(dsn)) as connection,
    ):

        def step() -> int:
            count = 0
            for _ in range(BATCHES_A_STEP[size]):
                rows = claim(connection, size)
                count += sum(len(body) > 0 for _, body in rows)
                done(connection, rows)
            return count

        yield step


def consume(desk: Desk, dsn: str, size: int, total: int) -> None:
    """Receive and ack until all consumers together have done `total`."""
    work = workers.Work()
    with Broker(dsn) as broker:
        consumer = broker.consumer(ours.TOPIC, ours.GROUP)
        with broker.connection():
            pass
        desk.begin()
        batch: Batch | tuple[()] = ()
        while desk.done.value < total:
            batch = consumer.receive(size, ours.INVISIBLE, workers.WAIT, acked=batch)
            if batch:
                for message in batch:
                    json.loads(message.body)
                work.messages += len(batch)
                work.last_at = time.time()
                desk.count(len(batch))
        if batch:
            consumer.ack(batch)
            work.last_at = time.time()
    desk.results.put(work)


def poll(desk: Desk, dsn: str, size: int, total: int) -> None:
    """Claim and finish rows until all pollers together have done `total`."""
    work = workers.Work()
    with closing(connect(dsn)) as connection:
        claim(connection, 0)
        desk.begin()
        while desk.done.value < total:
            rows = claim(connection, size)
            if not rows:
                time.sleep(workers.POLL_SECONDS)
                continue
            done(connection, rows)
            work.messages += len(rows)
            work.last_at = time.time()
            desk.count(len(rows))
    desk.results.put(work)


def _last_at(count: int, works: Sequence[workers.Work]) -> float:
    handled = sum(work.messages for work in works)
    if handled != count:
        raise RuntimeError(f"{count} messages were sent, {handled} handled")
    return max(work.last_at for work in works)


def _together(
    bench: Bench,
    loaded: Callable[[Bench, int, int], Any],
    worker: Callable[..., None],
    size: int,
    count: int,
    pair: int,
) -> float:
    """Messages a second of four processes together, from the start to the last one done."""
    with loaded(bench, count, pair) as dsn, crew(CONSUMERS, worker, dsn, size, count) as crew_:
        started = crew_.go()
        works: list[workers.Work] = crew_.collect(timeout_seconds=TIMEOUT_SECONDS)
    return count / (_last_at(count, works) - started)


def receive(bench: Bench) -> Iterator[Row]:
    """Receive + ack in batches of 1 000, 100 and 1, with one consumer and with four."""
    for size, rounds, count, goal, goal_of_four in (
        (1_000, bench.size(20, 4), bench.size(200_000, 40_000), 2.5, 2.5),
        (100, bench.size(40, 8), bench.size(100_000, 16_000), 1.6, 1.5),
        (1, bench.size(40, 6), bench.size(8_000, 1_000), 1.1, 1.0),
    ):
        what = (
            f"receive + ack, batches of {thousands(size)}" if size > 1 else "receive + ack of single messages"
        )
        yield Row(
            f"receive-{size}",
            f"{what}, 1 consumer",
            "messages/s",
            *side_by_side(
                partial(_ours_receiving, bench, size, rounds),
                partial(_table_receiving, bench, size, rounds),
                pairs=bench.pairs,
                rounds=rounds,
            ),
            "the table",
            [Goal(goal, "at least")],
        )
        yield Row(
            f"receive-{size}-4",
            f"{what}, 4 consumers",
            "messages/s",
            *interleave(
                partial(_together, bench, ours_due, consume, size, count),
                partial(_together, bench, table_due, poll, size, count),
                pairs=1 if bench.quick else bench.pairs,
                warm_up=0,
            ),
            "the table, 4 pollers",
            [Goal(goal_of_four, "at least")],
        )


# -- send ----------------------------------------------------------------------------------------------------


@contextmanager
def _ours_sending(bench: Bench, size: int, batches: int, rounds: int, pair: int) -> Iterator[Step]:
    work = iter(chunks(coming((rounds + 1) * batches * size, pair), size))
    with bench.server.duewheel() as dsn:
        ours.create_topic(dsn)
        with Broker(dsn) as broker:

            def step() -> int:
                for _ in range(batches):
                    batch = next(work)
                    if size == 1:
                        broker.send(ours.TOPIC, text(batch[0]).encode(), deliver_at=batch[0].due_at)
                    else:
                        send_many(broker, batch)
                return batches * size

            yield step


@contextmanager
def _table_sending(bench: Bench, size: int, batches: int, rounds: int, pair: int) -> Iterator[Step]:
    work = iter(chunks(coming((rounds + 1) * batches * size, pair), size))
    with bench.server.empty() as dsn, closing(connect(dsn)) as connection:
        with connection.cursor() as cursor:
            cursor.execute(CREATE)

        def step() -> int:
            for _ in range(batches):
                batch = next(work)
                if size == 1:
                    insert(connection, batch[0])
                else:
                    insert_many(connection, batch)
            return batches * size

        yield step


def send(bench: Bench) -> Iterator[Row]:
    """`send_many` of 1 000 against one INSERT of as many rows, and single sends against single INSERTs."""
    for name, what, size, batches, rounds, baseline, goal in (
        ("send-1000", "`send_many` of 1 000 with instants of their own", 1_000, 5, bench.size(30, 6),
         "one INSERT of 1 000 rows", 1.7),
        ("send-1", "single `send`", 1, 50, bench.size(30, 10), "INSERT + commit", 0.95),
    ):  # fmt: skip
        yield Row(
            name,
            what,
            "messages/s",
            *side_by_side(
                partial(_ours_sending, bench, size, batches, rounds),
                partial(_table_sending, bench, size, batches, rounds),
                pairs=bench.pairs,
                rounds=rounds,
            ),
            f"the table, {baseline}",
            [Goal(goal, "at least")],
        )


# -- size on disk --------------------------------------------------------------------------------------------

SCHEMA_BYTES = """
SELECT sum(pg_total_relation_size(c.oid))::bigint
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = 'duewheel' AND c.relkind = 'r'
"""


def _growth(connection: Connection, statement: str, write: Callable[[], None]) -> int:
    """By how many bytes the answer of `statement` grows by `write`."""
    sizes = []
    for step in (write, None):
        with connection.cursor() as cursor:
            cursor.execute(statement)
            sizes.append(int((cursor.fetchone() or (0,))[0]))
        if step is not None:
            step()
    return sizes[1] - sizes[0]


def disk(bench: Bench) -> Iterator[Row]:
    """Bytes on disk of a waiting message, indexes included, against a plain table with a primary key."""
    count = bench.size(200_000, 50_000)
    ours_bytes, plain_bytes, table_bytes = [], [], []
    for pair in range(bench.pairs):
        batches = chunks(coming(count, pair), 1_000)
        with bench.server.duewheel() as dsn, closing(connect(dsn)) as connection, Broker(dsn) as broker:
            ours.create_topic(dsn)

            def write_ours(broker: Broker = broker, batches: list[list[Order]] = batches) -> None:
                for batch in batches:
                    ours.send(broker, batch)

            ours_bytes.append(_growth(connection, SCHEMA_BYTES, write_ours) / count)
        with bench.server.empty() as dsn, closing(connect(dsn)) as connection:
            plain_table.create(connection)
            with connection.cursor() as cursor:
                cursor.execute(CREATE)

            def write_plain(
                connection: Connection = connection, batches: list[list[Order]] = batches
            ) -> None:
                for batch in batches:
                    plain_table.copy(connection, batch, born_at=ours.now())

            def write_table(
                connection: Connection = connection, batches: list[list[Order]] = batches
            ) -> None:
                for batch in batches:
                    insert_many(connection, batch)

            size_of = "SELECT pg_total_relation_size('{}')"
            plain_bytes.append(_growth(connection, size_of.format("plain"), write_plain) / count)
            table_bytes.append(_growth(connection, size_of.format("job"), write_table) / count)
    yield Row(
        "disk",
        "a waiting message of 100 bytes on disk, indexes included",
        "bytes",
        ours_bytes,
        plain_bytes,
        "plain table with the same columns and primary key",
        [Goal(1.25, "at most")],
    )
    yield Row("disk-table", "for comparison: the same", "bytes", ours_bytes, table_bytes, "the table")


# -- latency -------------------------------------------------------------------------------------------------


def _lateness_ms(
    bench: Bench, granularity: timedelta | None, due: Callable[[datetime], list[Order]]
) -> list[float]:
    """How late each handler began; `due` makes the messages, from their first instant."""
    with bench.server.duewheel() as dsn:
        if granularity is None:
            with Broker(dsn) as broker:
                broker.create_topic(ours.TOPIC, message_type="DELAY")
        else:
            ours.create_topic(dsn, granularity=granularity)
        coming_due = due(ours.now() + timedelta(seconds=4))
        with (
            crew(1, workers.turn_wheel, dsn) as wheel,
            crew(1, workers.consume_punctually, dsn, 100, len(coming_due)) as consumer,
            Broker(dsn) as broker,
        ):
            wheel.wait_until_ready()
            consumer.go()
            for chunk in chunks(coming_due, 1_000):
                send_many(broker, chunk)
            if ours.now() > min(order.due_at for order in coming_due):
                raise RuntimeError("the processes took so long to start that the first instant has passed")
            seconds = (max(order.due_at for order in coming_due) - ours.now()).total_seconds()
            (work,) = consumer.collect(timeout_seconds=seconds + 60)
    return [late * 1000 for late in work.lateness]


def _percentiles(name: str, what: str, lateness_ms: list[float], goals: dict[int, float]) -> Iterator[Row]:
    p50, p90, p99, largest = (percentile(lateness_ms, percent) for percent in (50, 90, 99, 100))
    note = f"p50 {p50:.1f} ms, p90 {p90:.1f} ms, p99 {p99:.1f} ms, largest {largest:.1f} ms"
    for percent, bound in goals.items():
        yield Row(
            f"{name}-p{percent}",
            f"due instant to handler start, p{percent}, {what}",
            "ms",
            [percentile(lateness_ms, percent)],
            goals=[Goal(bound, "at most", "ours")],
            notes=[note],
        )


def latency(bench: Bench) -> Iterator[Row]:
    """p99 at 200/s and 1 000/s, with a granularity of 5 ms and with a topic's default settings."""
    seconds = bench.size(20, 4)
    for granularity, settings, bound in (
        (timedelta(milliseconds=5), "granularity 5 ms", 5.0),
        (None, "default settings", 25.0),
    ):
        for rate in (200, 1_000):
            lateness_ms = _lateness_ms(
                bench,
                granularity,
                lambda start, rate=rate: orders(  # type: ignore[misc] # bound for this round
                    rate * seconds, start=start, within=timedelta(seconds=seconds), seed=rate
                ),
            )
            kind = "default" if granularity is None else "5ms"
            yield from _percentiles(
                f"latency-{kind}-{rate}", f"{thousands(rate)}/s, {settings}", lateness_ms, {99: bound}
            )


def lone(bench: Bench) -> Iterator[Row]:
    """Messages so far apart that the topic is idle before each."""
    count = bench.size(60, 10)

    def far_apart(start: datetime) -> list[Order]:
        return [
            replace(order, due_at=start + number * timedelta(milliseconds=1_310))
            for number, order in enumerate(orders(count, start=start, within=HOUR))
        ]

    yield from _percentiles(
        "lone",
        "a lone message on an idle topic, default settings",
        _lateness_ms(bench, None, far_apart),
        {50: 2.5, 99: 6.0},
    )


# -- flood ---------------------------------------------------------------------------------------------------


def _due_together(bench: Bench, count: int, seed: int) -> tuple[datetime, list[list[Order]]]:
    # Long enough to load them and to start the processes.
    due_at = ours.now().replace(microsecond=0) + timedelta(seconds=bench.size(15, 7))
    return due_at, chunks(
        [replace(order, due_at=due_at) for order in orders(count, start=due_at, within=HOUR, seed=seed)],
        10_000,
    )


def _handled_after(due_at: datetime, count: int, works: Sequence[workers.Work]) -> float:
    return _last_at(count, works) - due_at.timestamp()


def _ours_flood(bench: Bench, size: int, count: int, pair: int) -> float:
    with bench.server.duewheel() as dsn:
        ours.create_topic(dsn)
        due_at, loads = _due_together(bench, count, pair)
        with (
            crew(1, workers.turn_wheel, dsn) as wheel,
            crew(CONSUMERS, consume, dsn, size, count) as consumers,
            Broker(dsn) as broker,
        ):
            for load in loads:
                send_many(broker, load)
            wheel.wait_until_ready()
            consumers.go()
            _in_time(due_at)
            return _handled_after(due_at, count, consumers.collect(timeout_seconds=TIMEOUT_SECONDS))


def _table_flood(bench: Bench, size: int, count: int, pair: int) -> float:
    with bench.server.empty() as dsn, closing(connect(dsn)) as connection:
        with connection.cursor() as cursor:
            cursor.execute(CREATE)
        due_at, loads = _due_together(bench, count, pair)
        with crew(CONSUMERS, poll, dsn, size, count) as pollers:
            for load in loads:
                insert_many(connection, load)
            pollers.go()
            _in_time(due_at)
            return _handled_after(due_at, count, pollers.collect(timeout_seconds=TIMEOUT_SECONDS))


def _in_time(due_at: datetime) -> None:
    if ours.now() > due_at:
        raise RuntimeError("loading and starting took so long that the instant has passed")


def flood(bench: Bench) -> Iterator[Row]:
    """Until the last of many messages due at one instant is handled by 4 consumers."""
    count, size = bench.size(100_000, 30_000), 1_000
    yield Row(
        "flood",
        f"{thousands(count)} due at one instant, {CONSUMERS} consumers, batches of {thousands(size)}, "
        "until the last is handled",
        "s",
        *interleave(
            partial(_ours_flood, bench, size, count),
            partial(_table_flood, bench, size, count),
            pairs=1 if bench.quick else bench.pairs,
            warm_up=0,
        ),
        f"the table, {CONSUMERS} pollers that look every 5 ms",
        [Goal(0.25, "at most")],
    )


SUBJECTS = [
    Subject("receive", "receive + ack, batches of 1 000, 100 and 1, 1 and 4 consumers", receive),
    Subject("send", "send_many of 1 000 and single sends", send),
    Subject("disk", "bytes on disk of a waiting message", disk),
    Subject("latency", "due instant to handler start at 200/s and 1 000/s", latency),
    Subject("lone", "due instant to handler start of a lone message", lone),
    Subject("flood", "many due at one instant, 4 consumers", flood),
]

if __name__ == "__main__":
    main("ten_minutes_table", __doc__, SUBJECTS)
