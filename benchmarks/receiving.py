"""Receive + ack in one process: against a keyset SELECT, the SKIP LOCKED table, other queues on Postgres.

All messages are due already, each at an instant of its own in an hour that has passed. Each pair takes fresh
databases, loads them and brings them to rest before it begins.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from functools import partial

from benchmarks import ours, pgqueuer_queue, plain_table, procrastinate_queue, status_table
from benchmarks.bench import Bench, Step, Subject, rate, side_by_side
from benchmarks.measure import Goal, Row, interleave, thousands
from benchmarks.messages import Order, chunks, handle, orders
from benchmarks.server import connect, settle
from duewheel.store import Broker

HOUR = timedelta(hours=1)
LOAD_CHUNK = 10_000
#: Batches of one measured step, by the size of the batch.
BATCHES_A_STEP = {1_000: 5, 100: 10, 1: 50}


def due(count: int, *, seed: int) -> list[list[Order]]:
    """Chunks of `count` messages that came due within an hour that ended an hour ago."""
    return chunks(orders(count, start=ours.now() - 2 * HOUR, within=HOUR, seed=seed), LOAD_CHUNK)


@contextmanager
def ours_due(bench: Bench, count: int, seed: int) -> Iterator[str]:
    """A fresh database at rest with `count` messages due."""
    with bench.server.duewheel() as dsn:
        ours.create_topic(dsn)
        ours.load(dsn, due(count, seed=seed), at=ours.now() - 2 * HOUR)
        settle(dsn)
        yield dsn


@contextmanager
def status_due(bench: Bench, count: int, seed: int) -> Iterator[str]:
    """A fresh status table at rest with `count` rows due."""
    with bench.server.empty() as dsn, closing(connect(dsn)) as connection:
        status_table.create(connection)
        for chunk in due(count, seed=seed):
            status_table.copy(connection, chunk, born_at=ours.now() - 2 * HOUR)
        settle(dsn)
        yield dsn


@contextmanager
def ours_side(bench: Bench, size: int, rounds: int, pair: int) -> Iterator[Step]:
    """Receive + ack in batches of `size`."""
    step_count = BATCHES_A_STEP[size] * size
    with ours_due(bench, (rounds + 1) * step_count, pair) as dsn, Broker(dsn) as broker:
        consumer = broker.consumer(ours.TOPIC, ours.GROUP)
        yield lambda: ours.work(consumer, size=size, batches=BATCHES_A_STEP[size])


@contextmanager
def status_side(bench: Bench, size: int, rounds: int, pair: int) -> Iterator[Step]:
    """Claim + complete in batches of `size`."""
    step_count = BATCHES_A_STEP[size] * size
    with status_due(bench, (rounds + 1) * step_count, pair) as dsn, closing(connect(dsn)) as connection:
        yield lambda: status_table.work(connection, size=size, batches=BATCHES_A_STEP[size])


@contextmanager
def lean_status_side(bench: Bench, size: int, rounds: int, pair: int) -> Iterator[Step]:
    """The status table at the least cost: claims that do not wait for the disk, done rows deleted."""
    step_count = BATCHES_A_STEP[size] * size
    with (
        status_due(bench, (rounds + 1) * step_count, pair) as dsn,
        closing(connect(dsn, options="-c synchronous_commit=off")) as claims,
        closing(connect(dsn)) as connection,
    ):
        yield lambda: status_table.work_lean(claims, connection, size=size, batches=BATCHES_A_STEP[size])


@contextmanager
def keyset_side(bench: Bench, size: int, rounds: int, pair: int) -> Iterator[Step]:
    """The plain table's rows in key order by pages of `size`."""
    with bench.server.empty() as dsn, closing(connect(dsn)) as connection:
        plain_table.create(connection)
        for chunk in due((rounds + 1) * BATCHES_A_STEP[size] * size, seed=pair):
            plain_table.copy(connection, chunk, born_at=ours.now() - 2 * HOUR)
        settle(dsn)
        pages = iter(plain_table.pages(connection, size=size))

        def step() -> int:
            done = 0
            for _ in range(BATCHES_A_STEP[size]):
                rows = next(pages)
                handle(row[-1] for row in rows)
                done += len(rows)
            return done

        yield step


def receive_keyset(bench: Bench) -> Iterator[Row]:
    """Batches of 1 000 against keyset pages of 1 000."""
    rounds = bench.size(20, 6)
    yield Row(
        "receive-keyset",
        "receive + ack, batches of 1 000",
        "messages/s",
        *side_by_side(
            partial(ours_side, bench, 1_000, rounds),
            partial(keyset_side, bench, 1_000, rounds),
            pairs=bench.pairs,
            rounds=rounds,
        ),
        "keyset SELECT, pages of 1 000",
        [Goal(0.8, "at least")],
    )


def receive_status(size: int, at_least: float, bench: Bench) -> Iterator[Row]:
    """Batches of `size` against the status table, as users write it and in its leanest form."""
    rounds = bench.size(20, 6) if size == 1_000 else bench.size(40, 8)
    what = f"receive + ack, batches of {thousands(size)}" if size > 1 else "receive + ack of single messages"
    yield Row(
        f"receive-{size}",
        what,
        "messages/s",
        *side_by_side(
            partial(ours_side, bench, size, rounds),
            partial(status_side, bench, size, rounds),
            pairs=bench.pairs,
            rounds=rounds,
        ),
        "SKIP LOCKED table, batches alike",
        [Goal(at_least, "at least")],
    )
    yield Row(
        f"receive-{size}-lean",
        f"for comparison: {what}",
        "messages/s",
        *side_by_side(
            partial(ours_side, bench, size, rounds),
            partial(lean_status_side, bench, size, rounds),
            pairs=bench.pairs,
            rounds=rounds,
        ),
        "SKIP LOCKED table whose claims do not wait for the disk and which deletes what is done",
    )


def _ours_whole(bench: Bench, size: int, count: int, pair: int) -> float:
    """Receive + ack of everything, the consumer's start included."""
    with ours_due(bench, count, pair) as dsn:

        def drain() -> None:
            with Broker(dsn) as broker:
                consumer = broker.consumer(ours.TOPIC, ours.GROUP)
                while batch := consumer.receive(size, ours.INVISIBLE):
                    consumer.ack(batch)

        return rate(count, drain)


def _pgqueuer_whole(bench: Bench, count: int, pair: int) -> float:
    with bench.server.empty() as dsn:
        with pgqueuer_queue.Sender(dsn) as sender:
            sender.create()
            for chunk in due(count, seed=pair):
                sender.send(chunk)
        settle(dsn)
        return rate(count, lambda: pgqueuer_queue.drain(dsn, batch_size=100))


def _procrastinate_whole(bench: Bench, count: int, pair: int) -> float:
    with bench.server.empty() as dsn:
        with procrastinate_queue.Sender(dsn) as sender:
            sender.create()
            for chunk in due(count, seed=pair):
                sender.send(chunk)
        settle(dsn)
        return rate(count, lambda: procrastinate_queue.drain(dsn))


def receive_others(bench: Bench) -> Iterator[Row]:
    """Receive + ack of everything against the workers of procrastinate and pgqueuer."""
    many, few = bench.size(20_000, 3_000), bench.size(2_000, 500)
    yield Row(
        "receive-pgqueuer",
        "receive + ack, batches of 100",
        "messages/s",
        *interleave(
            partial(_ours_whole, bench, 100, many), partial(_pgqueuer_whole, bench, many), pairs=bench.pairs
        ),
        "pgqueuer, batches of 100 (asyncpg)",
    )
    yield Row(
        "receive-procrastinate",
        "receive + ack of single messages",
        "messages/s",
        *interleave(
            partial(_ours_whole, bench, 1, few), partial(_procrastinate_whole, bench, few), pairs=bench.pairs
        ),
        f"procrastinate, {procrastinate_queue.CONCURRENCY} jobs at a time (psycopg 3)",
    )


SUBJECTS = [
    Subject("receive-keyset", "receive + ack against the keyset SELECT", receive_keyset),
    Subject(
        "receive-1000",
        "receive + ack against SKIP LOCKED, batches of 1 000",
        partial(receive_status, 1_000, 2.5),
    ),
    Subject(
        "receive-100", "receive + ack against SKIP LOCKED, batches of 100", partial(receive_status, 100, 1.5)
    ),
    Subject(
        "receive-1", "receive + ack against SKIP LOCKED, single messages", partial(receive_status, 1, 1.0)
    ),
    Subject("receive-others", "receive + ack against procrastinate and pgqueuer", receive_others),
]
