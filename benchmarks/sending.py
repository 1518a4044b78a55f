"""Sending: in bulk against COPY, singly against a one-row INSERT, both against other queues on Postgres."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from functools import partial

from benchmarks import ours, pgqueuer_queue, plain_table, procrastinate_queue
from benchmarks.bench import Bench, Step, Subject, side_by_side
from benchmarks.measure import Goal, Row
from benchmarks.messages import Order, chunks, orders
from benchmarks.server import connect
from duewheel.store import Broker

HOUR = timedelta(hours=1)
#: Messages of one `send_many`, and how many of those one measured step does.
BATCH = 1_000
BATCHES_A_STEP = 5
#: Single sends of one measured step.
SINGLES_A_STEP = 50


def coming(count: int, *, seed: int) -> list[Order]:
    """`count` messages due over the next hour."""
    return orders(count, start=ours.now() + timedelta(minutes=1), within=HOUR, seed=seed)


def _steps(rounds: int, seed: int) -> Iterator[list[list[Order]]]:
    """For each step, its batches."""
    batches = chunks(coming((rounds + 1) * BATCHES_A_STEP * BATCH, seed=seed), BATCH)
    return iter([batches[start : start + BATCHES_A_STEP] for start in range(0, len(batches), BATCHES_A_STEP)])


@contextmanager
def ours_in_bulk(bench: Bench, rounds: int, with_key: bool, pair: int) -> Iterator[Step]:
    """`send_many` into a fresh database."""
    work = _steps(rounds, pair)
    with bench.server.duewheel() as dsn:
        ours.create_topic(dsn)
        with Broker(dsn) as broker:

            def step() -> int:
                for batch in next(work):
                    ours.send(broker, batch, with_key=with_key)
                return BATCHES_A_STEP * BATCH

            yield step


@contextmanager
def copy_in_bulk(bench: Bench, rounds: int, with_key: bool, pair: int) -> Iterator[Step]:
    """COPY into a fresh plain table."""
    work = _steps(rounds, pair)
    with bench.server.empty() as dsn, closing(connect(dsn)) as connection:
        plain_table.create(connection)

        def step() -> int:
            for batch in next(work):
                plain_table.copy(connection, batch, born_at=ours.now(), with_key=with_key)
            return BATCHES_A_STEP * BATCH

        yield step


@contextmanager
def ours_singly(bench: Bench, rounds: int, pair: int) -> Iterator[Step]:
    """Single sends, each its own transaction."""
    work = iter(coming((rounds + 1) * SINGLES_A_STEP, seed=pair))
    with bench.server.duewheel() as dsn:
        ours.create_topic(dsn)
        with Broker(dsn) as broker:

            def step() -> int:
                for _ in range(SINGLES_A_STEP):
                    order = next(work)
                    broker.send(ours.TOPIC, order.body, deliver_at=order.due_at)
                return SINGLES_A_STEP

            yield step


@contextmanager
def insert_singly(bench: Bench, rounds: int, pair: int) -> Iterator[Step]:
    """One-row INSERTs, each its own transaction."""
    work = iter(coming((rounds + 1) * SINGLES_A_STEP, seed=pair))
    with bench.server.empty() as dsn, closing(connect(dsn)) as connection:
        plain_table.create(connection)

        def step() -> int:
            for _ in range(SINGLES_A_STEP):
                plain_table.insert(connection, next(work), born_at=ours.now())
            return SINGLES_A_STEP

        yield step


@contextmanager
def library_in_bulk(
    bench: Bench, library: type[procrastinate_queue.Sender | pgqueuer_queue.Sender], rounds: int, pair: int
) -> Iterator[Step]:
    """The bulk send of another queue into a fresh database."""
    work = _steps(rounds, pair)
    with bench.server.empty() as dsn, library(dsn) as sender:
        sender.create()

        def step() -> int:
            for batch in next(work):
                sender.send(batch)
            return BATCHES_A_STEP * BATCH

        yield step


def _send_many(bench: Bench, *, with_key: bool) -> tuple[list[float], list[float]]:
    rounds = bench.size(30, 8)
    return side_by_side(
        partial(ours_in_bulk, bench, rounds, with_key),
        partial(copy_in_bulk, bench, rounds, with_key),
        pairs=bench.pairs,
        rounds=rounds,
    )


def send_many(bench: Bench) -> Iterator[Row]:
    """`send_many` of 1 000 against COPY of the same rows."""
    yield Row(
        "send-many",
        "`send_many` of 1 000 x 100 bytes due over the next hour",
        "messages/s",
        *_send_many(bench, with_key=False),
        "plain COPY, same primary key",
        [Goal(0.5, "at least")],
    )


def send_many_keys(bench: Bench) -> Iterator[Row]:
    """`send_many` of 1 000 with keys against COPY of the same rows."""
    yield Row(
        "send-many-keys",
        "the same with keys",
        "messages/s",
        *_send_many(bench, with_key=True),
        "plain COPY, same primary key",
        [Goal(0.35, "at least")],
    )


def send_one(bench: Bench) -> Iterator[Row]:
    """Single sends against one-row INSERTs, each its own transaction."""
    rounds = bench.size(30, 8)
    yield Row(
        "send-one",
        "single `send`",
        "messages/s",
        *side_by_side(
            partial(ours_singly, bench, rounds),
            partial(insert_singly, bench, rounds),
            pairs=bench.pairs,
            rounds=rounds,
        ),
        "one-row INSERT + commit, one round trip",
        [Goal(0.8, "at least")],
    )


def send_others(bench: Bench) -> Iterator[Row]:
    """`send_many` of 1 000 against the bulk sends of procrastinate and pgqueuer."""
    rounds = bench.size(6, 2)
    libraries: list[tuple[str, str, type[procrastinate_queue.Sender | pgqueuer_queue.Sender]]] = [
        ("send-procrastinate", "procrastinate, 1 000 jobs a call (psycopg 3)", procrastinate_queue.Sender),
        ("send-pgqueuer", "pgqueuer, 1 000 jobs a call (asyncpg)", pgqueuer_queue.Sender),
    ]
    for name, what, library in libraries:
        yield Row(
            name,
            "`send_many` of 1 000 x 100 bytes",
            "messages/s",
            *side_by_side(
                partial(ours_in_bulk, bench, rounds, False),
                partial(library_in_bulk, bench, library, rounds),
                pairs=bench.pairs,
                rounds=rounds,
            ),
            what,
        )


SUBJECTS = [
    Subject("send-many", "send_many against COPY", send_many),
    Subject("send-many-keys", "send_many with keys against COPY", send_many_keys),
    Subject("send-one", "send against a one-row INSERT", send_one),
    Subject("send-others", "send_many against procrastinate and pgqueuer", send_others),
]
