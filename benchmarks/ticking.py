"""Ticks: how long releasing takes, whether one message is due or a million."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from datetime import timedelta
from functools import partial
from itertools import count as numbers

from psycopg2.extensions import connection as Connection  # noqa: N812 - it is a class

from benchmarks import ours, plain_table
from benchmarks.bench import Bench, Subject, seconds
from benchmarks.measure import Goal, Row, interleave, percentile, thousands
from benchmarks.messages import Order
from benchmarks.server import connect, settle
from duewheel.store import Broker

SLOTS = 100
DAY = timedelta(days=1)
BODY = bytes(range(100))


def tick_seconds(connection: Connection, topic: str) -> float:
    """How long one tick of `topic` takes, which must find something due."""
    with connection.cursor() as cursor:
        taken = seconds(lambda: cursor.execute("CALL duewheel.tick(%s)", (topic,)))
        (released,) = cursor.fetchone() or (0,)
        if not released:
            raise RuntimeError(f"the tick of {topic} released nothing, though something is due")
    return taken


def one_due(bench: Bench) -> Iterator[Row]:
    """A tick with one message due and a hundred slots of a day on disk, beside a one-row INSERT + commit."""
    ticks = bench.size(200, 50)
    start = ours.now() + timedelta(minutes=5)
    row_numbers = numbers()
    with bench.server.duewheel() as dsn, bench.server.empty() as plain_dsn:
        ours.create_topic(dsn, max_delay=(SLOTS + 1) * DAY)
        ours.fill(dsn, SLOTS * 1_000, start=start, within=SLOTS * DAY, at=ours.now())
        settle(dsn)
        with Broker(dsn) as broker, closing(connect(dsn)) as connection, closing(connect(plain_dsn)) as plain:
            with connection.cursor() as cursor:
                cursor.execute(
                    "SELECT count(*) FROM pg_inherits WHERE inhparent = 'duewheel.message'::regclass"
                )
                (slots,) = cursor.fetchone() or (0,)
            plain_table.create(plain)

            def tick(_pair: int) -> float:
                taken = []
                for _ in range(ticks):
                    broker.send(ours.TOPIC, BODY, delay=timedelta(0))
                    taken.append(tick_seconds(connection, ours.TOPIC))
                return percentile(taken, 50) * 1000

            def insert(_pair: int) -> float:
                taken = []
                for number in (next(row_numbers) for _ in range(ticks)):
                    order = Order(number, start, BODY, "")
                    taken.append(seconds(partial(plain_table.insert, plain, order, born_at=start)))
                return percentile(taken, 50) * 1000

            readings, baseline = interleave(tick, insert, pairs=bench.pairs)
    yield Row(
        "tick",
        f"a tick with one message due, {slots} slots on disk, median",
        "ms",
        readings,
        baseline,
        "one-row INSERT + commit",
        [Goal(2, "at most", "ours")],
    )


def release(bench: Bench) -> Iterator[Row]:
    """Releasing a million messages due at one instant against releasing a thousand.

    A reading is the median of several ticks, each committed; taking the tick's row away makes the messages
    due again. At the end a consumer shows that they are really out.
    """
    many, few, ticks = bench.size(1_000_000, 100_000), 1_000, bench.size(21, 7)
    due_at = ours.now().replace(second=0, microsecond=0) - timedelta(minutes=1)

    def reading(connection: Connection, _pair: int) -> float:
        taken = []
        for _ in range(ticks):
            with connection.cursor() as cursor:
                cursor.execute("DELETE FROM duewheel.tick")
            taken.append(tick_seconds(connection, ours.TOPIC))
        return percentile(taken, 50) * 1000

    with ExitStack() as stack:
        dsns, connections = [], []
        for count in (many, few):
            dsn = stack.enter_context(bench.server.duewheel())
            ours.create_topic(dsn)
            ours.fill(dsn, count, start=due_at, within=timedelta(0), at=due_at - timedelta(minutes=10))
            settle(dsn)
            dsns.append(dsn)
            connections.append(stack.enter_context(closing(connect(dsn))))
        readings, baseline = interleave(
            partial(reading, connections[0]), partial(reading, connections[1]), pairs=bench.pairs
        )
        for dsn in dsns:
            with Broker(dsn) as broker:
                consumer = broker.consumer(ours.TOPIC, ours.GROUP)
                if ours.work(consumer, size=100, batches=10) != few:
                    raise RuntimeError("what was released could not be received")
    yield Row(
        "release",
        f"release of {thousands(many)} messages due at one instant",
        "ms",
        readings,
        baseline,
        f"release of {thousands(few)}",
        [Goal(3, "at most"), Goal(20, "at most", "ours")],
    )


SUBJECTS = [
    Subject("tick", "a tick with one message due and 100 slots on disk", one_due),
    Subject("release", "release of 1 000 000 due at one instant against 1 000", release),
]
