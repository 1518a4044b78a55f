"""The cost of messages that reach far ahead: 1 day, 60 days and 10 years, on stock settings.

Three databases hold the same number of waiting messages, each with a key, spread evenly over their horizon.
Every operation is then measured in all three in turn. The cost of an operation on a new connection counts as
much as that on a used one, because every Airflow task is a new connection. So does the memory of a session.
"""

from __future__ import annotations

import itertools
import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from benchmarks import ours
from benchmarks.bench import Bench, Subject, seconds
from benchmarks.measure import Goal, Row
from benchmarks.messages import BODY, now
from benchmarks.program import main
from benchmarks.server import connect, query
from duewheel.store import Broker

HORIZONS = {"1 day": timedelta(days=1), "60 days": timedelta(days=60), "10 years": timedelta(days=3650)}
NEAR = "1 day"
WAITING = 3_000
BATCH = 1_000
#: A reading is the median of this many calls, or of as many as fit into this many seconds.
CALLS = 15
READING_SECONDS = 1.0
MEBIBYTE = 1024 * 1024

FIRST_CALLS = {
    "send": "SELECT duewheel.send('bench', '\\x00', deliver_at => %(at)s, key => %(key)s)",
    "recall_key": "SELECT duewheel.recall_key('bench', %(key)s)",
    "receive": "SELECT * FROM duewheel.receive_batch(%(group)s, %(topic)s, 1, '60 s', 'me', 0, false)",
}
MEMORY = "SELECT sum(total_bytes)::float8 FROM pg_backend_memory_contexts"


@dataclass
class Database:
    """One horizon's database, with the calls that work on it."""

    reach: timedelta
    dsn: str
    broker: Broker
    chance: random.Random = field(default_factory=lambda: random.Random(1))
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.broker.create_topic(ours.TOPIC, message_type="DELAY", max_delay=timedelta(days=3660))
        self.consumer = self.broker.consumer(ours.TOPIC, ours.GROUP)
        # One by one, as an application does.
        for _ in range(WAITING):
            self.send()

    def instant(self) -> datetime:
        """An instant within the horizon, but not so soon that it is due during the run."""
        return now() + timedelta(minutes=10) + self.chance.random() * self.reach

    def key(self) -> str:
        """A new key."""
        return f"order-{next(self.numbers)}"

    def send(self) -> tuple[str, str]:
        """Send one message into the horizon; returns its id and its key."""
        key = self.key()
        return self.broker.send(ours.TOPIC, BODY, deliver_at=self.instant(), key=key).message_id, key


# Each prepares one call, unmeasured, and returns it.


def _send_many(database: Database) -> Callable[[], object]:
    batch = [{"body": BODY, "deliver_at": database.instant(), "key": database.key()} for _ in range(BATCH)]
    return lambda: database.broker.send_many(ours.TOPIC, batch)


def _by_id(name: str, database: Database) -> Callable[[], object]:
    message_id, _ = database.send()
    return lambda: getattr(database.broker, name)(message_id)


def _by_key(name: str, database: Database) -> Callable[[], object]:
    _, key = database.send()
    return lambda: getattr(database.broker, name)(ours.TOPIC, key)


def _receive(size: int, database: Database) -> Callable[[], object]:
    if size:
        database.broker.send_many(ours.TOPIC, [{"body": BODY, "delay": timedelta(0)} for _ in range(size)])
    else:
        ours.drain(database.consumer)
    return lambda: database.consumer.receive(size or 1, ours.INVISIBLE)


def _tick(database: Database) -> Callable[[], object]:
    database.broker.send(ours.TOPIC, BODY, delay=timedelta(0))
    return lambda: database.broker.tick(ours.TOPIC)


#: Each operation, and how many calls a reading has.
OPERATIONS: dict[str, tuple[Callable[[Database], Callable[[], object]], int]] = {
    "send": (lambda database: database.send, CALLS),
    "send_many of 1 000 over the whole horizon": (_send_many, 3),
    "recall": (lambda database: _by_id("recall", database), CALLS),
    "recall_key": (lambda database: _by_key("recall_key", database), CALLS),
    "find": (lambda database: _by_id("find", database), CALLS),
    "find_key": (lambda database: _by_key("find_key", database), CALLS),
    "history": (lambda database: _by_id("history", database), CALLS),
    "receive of 1": (lambda database: _receive(1, database), CALLS),
    "receive of 100": (lambda database: _receive(100, database), CALLS),
    "empty receive": (lambda database: _receive(0, database), CALLS),
    "tick": (_tick, CALLS),
    "stats": (lambda database: database.broker.stats, CALLS),
}


def _reading(database: Database, operation: str, calls: int) -> float:
    taken: list[float] = []
    until = time.monotonic() + READING_SECONDS
    while len(taken) < calls and (not taken or time.monotonic() < until):
        taken.append(seconds(OPERATIONS[operation][0](database)))
    return statistics.median(taken) * 1000


def _first_call(database: Database, operation: str) -> tuple[float, float]:
    """Milliseconds of the first call on a new connection, and the median of the ten after it."""
    taken: list[float] = []
    with closing(connect(database.dsn)) as connection, connection.cursor() as cursor:
        for _ in range(11):
            parameters = {
                "at": database.instant(),
                "key": database.send()[1] if operation == "recall_key" else database.key(),
                "group": database.consumer.group_id,
                "topic": database.consumer.topic_id,
            }
            started = time.perf_counter()
            cursor.execute(FIRST_CALLS[operation], parameters)
            taken.append(time.perf_counter() - started)
    return taken[0] * 1000, statistics.median(taken[1:]) * 1000


def horizon(bench: Bench) -> Iterator[Row]:
    """All operations at 60 days and at 10 years, against 1 day."""
    with ExitStack() as stack:
        databases: dict[str, Database] = {}
        for name, reach in HORIZONS.items():
            dsn = stack.enter_context(bench.server.duewheel())
            databases[name] = Database(reach, dsn, stack.enter_context(Broker(dsn)))
        yield from _operations(bench, databases)
        yield from _first_calls(bench, databases)
        for name, database in databases.items():
            with database.broker.connection() as connection, connection.cursor() as cursor:
                cursor.execute(MEMORY)
                ((memory,),) = cursor.fetchall()
            ((fresh,),) = query(database.dsn, MEMORY)
            yield Row(
                f"memory-{name}",
                f"memory of a session after all of these, {name}",
                "MB",
                [memory / MEBIBYTE],
                [fresh / MEBIBYTE],
                "a fresh session",
                [Goal(15, "at most", "difference")] if name != NEAR else [],
            )


def _operations(bench: Bench, databases: dict[str, Database]) -> Iterator[Row]:
    for operation, (_, calls) in OPERATIONS.items():
        readings: dict[str, list[float]] = {name: [] for name in databases}
        for database in databases.values():
            # A session's first calls are measured separately.
            _reading(database, operation, 2)
        for pair in range(bench.pairs):
            for name in sorted(databases, reverse=bool(pair % 2)):
                readings[name].append(_reading(databases[name], operation, calls))
        for name in list(readings)[1:]:
            yield Row(
                f"{operation}-{name}",
                f"{operation}, p50, {name}",
                "ms",
                readings[name],
                readings[NEAR],
                NEAR,
                [Goal(1.5, "at most")],
            )


def _first_calls(bench: Bench, databases: dict[str, Database]) -> Iterator[Row]:
    for operation in FIRST_CALLS:
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in databases}
        for _ in range(bench.pairs + 1):
            for name, database in databases.items():
                taken[name].append(_first_call(database, operation))
        for name, pairs in taken.items():
            yield Row(
                f"first-{operation}-{name}",
                f"the first {operation} on a new connection, {name}",
                "ms",
                [first for first, _ in pairs],
                [used for _, used in pairs],
                "the same on a used one",
                [Goal(12, "at most", "difference")],
            )


SUBJECTS = [Subject("horizon", "what it costs that messages reach far ahead", horizon)]

if __name__ == "__main__":
    main("horizon", __doc__, SUBJECTS)
