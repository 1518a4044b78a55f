"""The cost of messages that reach far ahead: 1 day, 60 days and 10 years, on stock settings.

Three databases hold the same number of waiting messages, each with a key, spread evenly over their horizon.
Every operation is then measured in all three in turn. The cost of an operation on a new connection counts as
much as that on a used one, because every Airflow task is a new connection. So do the memory of a session and
its locks, because the server's default of 64 locks per transaction is soon used up.

A failed operation counts as infinitely slow and is named in a note.
"""

from __future__ import annotations

import itertools
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import inf

import psycopg2

from benchmarks import ours, workers
from benchmarks.bench import Bench, Subject
from benchmarks.measure import Goal, Row, percentile, thousands
from benchmarks.processes import crew
from benchmarks.program import main
from benchmarks.server import connect
from duewheel.store import Broker
from duewheel.store.values.errors import DueWheelError, said

HORIZONS = {"1 day": timedelta(days=1), "60 days": timedelta(days=60), "10 years": timedelta(days=3650)}
NEAR = "1 day"
WAITING = 3_000
BATCH = 1_000
BODY = bytes(range(100))
#: A reading is the median of this many calls, or of as many as fit into this many seconds.
CALLS = 15
READING_SECONDS = 1.0
CONSUMERS = 30
MEBIBYTE = 1024 * 1024

FIRST_CALLS = {
    "send": "SELECT duewheel.send('bench', '\\x00', deliver_at => %(at)s, key => %(key)s)",
    "recall_key": "SELECT duewheel.recall_key('bench', %(key)s)",
    "receive": "SELECT * FROM duewheel.receive_batch(%(group)s, %(topic)s, NULL, 1, '60 s', 'me', 0, false)",
}
MEMORY = "SELECT sum(total_bytes) FROM pg_backend_memory_contexts"
SLOTS = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'duewheel.message'::regclass"


@dataclass
class Database:
    """One horizon's database, with the calls that work on it."""

    name: str
    reach: timedelta
    dsn: str
    broker: Broker
    chance: random.Random = field(default_factory=lambda: random.Random(1))
    numbers: Iterator[int] = field(default_factory=itertools.count)
    #: The errors of failed calls, by operation.
    failures: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.broker.create_topic(ours.TOPIC, message_type="DELAY", max_delay=timedelta(days=3660))
        self.consumer = self.broker.consumer(ours.TOPIC, ours.GROUP)

    def instant(self) -> datetime:
        """An instant within the horizon, but not so soon that it comes due during the run."""
        return ours.now() + timedelta(minutes=10) + self.chance.random() * self.reach

    def key(self) -> str:
        """A new key."""
        return f"order-{next(self.numbers)}"

    def send(self) -> tuple[str, str]:
        """Send one message into the horizon; returns its id and its key."""
        key = self.key()
        return self.broker.send(ours.TOPIC, BODY, deliver_at=self.instant(), key=key).message_id, key

    def send_due(self, count: int) -> None:
        """Send messages that are due at once."""
        self.broker.send_many(ours.TOPIC, [{"body": BODY, "delay": timedelta(0)} for _ in range(count)])

    def fill(self, seconds: float) -> int:
        """Send the waiting messages one by one, as an application does, for at most `seconds`; returns how
        many."""
        until = time.monotonic() + seconds
        for sent in range(WAITING):
            if time.monotonic() > until:
                return sent
            self.send()
        return WAITING


def _why(error: Exception) -> str:
    """The server's message, without the statement."""
    return said(error).partition("; CONTEXT")[0]


def _send_many(database: Database) -> Callable[[], object]:
    batch = [{"body": BODY, "deliver_at": database.instant(), "key": database.key()} for _ in range(BATCH)]
    return lambda: database.broker.send_many(ours.TOPIC, batch)


def _recall(database: Database) -> Callable[[], object]:
    message_id, _ = database.send()
    return lambda: database.broker.recall(message_id)


def _recall_key(database: Database) -> Callable[[], object]:
    _, key = database.send()
    return lambda: database.broker.recall_key(ours.TOPIC, key)


def _find(database: Database) -> Callable[[], object]:
    message_id, _ = database.send()
    return lambda: database.broker.find(message_id)


def _find_key(database: Database) -> Callable[[], object]:
    _, key = database.send()
    return lambda: database.broker.find_key(ours.TOPIC, key)


def _history(database: Database) -> Callable[[], object]:
    message_id, _ = database.send()
    return lambda: database.broker.history(message_id)


def _receive(database: Database, size: int) -> Callable[[], object]:
    database.send_due(size)
    return lambda: database.consumer.receive(size, ours.INVISIBLE)


def _drain(database: Database) -> None:
    while batch := database.consumer.receive(1_000, ours.INVISIBLE):
        database.consumer.ack(batch)


def _receive_nothing(database: Database) -> Callable[[], object]:
    _drain(database)
    return lambda: database.consumer.receive(1, ours.INVISIBLE)


def _tick(database: Database) -> Callable[[], object]:
    database.send_due(1)
    return lambda: database.broker.tick(ours.TOPIC)


#: The measured operations: each function prepares one call, unmeasured, and returns it.
OPERATIONS: dict[str, Callable[[Database], Callable[[], object]]] = {
    "send": lambda database: database.send,
    "send_many of 1 000 over the whole horizon": _send_many,
    "recall": _recall,
    "recall_key": _recall_key,
    "find": _find,
    "find_key": _find_key,
    "history": _history,
    "receive of 1": lambda database: _receive(database, 1),
    "receive of 100": lambda database: _receive(database, 100),
    "empty receive": _receive_nothing,
    "tick": _tick,
    "stats": lambda database: database.broker.stats,
}


def _reading(database: Database, operation: str, calls: int = CALLS) -> float:
    """The median of some calls, in milliseconds; infinity when one failed."""
    taken: list[float] = []
    until = time.monotonic() + READING_SECONDS
    while len(taken) < calls and (not taken or time.monotonic() < until):
        try:
            call = OPERATIONS[operation](database)
            started = time.perf_counter()
            call()
            taken.append(time.perf_counter() - started)
        except (DueWheelError, psycopg2.Error) as error:
            database.failures.setdefault(operation, _why(error))
            return inf
    return statistics.median(taken) * 1000


def _first_call(database: Database, operation: str, group_id: int, topic_id: int) -> tuple[float, float]:
    """Milliseconds of the first call on a new connection, and the median of the ten after it."""
    taken: list[float] = []
    try:
        with closing(connect(database.dsn)) as connection, connection.cursor() as cursor:
            for _ in range(11):
                parameters = {
                    "at": database.instant(),
                    "key": database.key(),
                    "group": group_id,
                    "topic": topic_id,
                }
                if operation == "recall_key":
                    _, parameters["key"] = database.send()
                started = time.perf_counter()
                cursor.execute(FIRST_CALLS[operation], parameters)
                taken.append(time.perf_counter() - started)
    except (DueWheelError, psycopg2.Error) as error:
        database.failures.setdefault(f"first {operation}", _why(error))
        return inf, inf
    return taken[0] * 1000, statistics.median(taken[1:]) * 1000


def _one(dsn: str, statement: str) -> float:
    with closing(connect(dsn)) as connection, connection.cursor() as cursor:
        cursor.execute(statement)
        (answer,) = cursor.fetchone() or (0,)
        return float(answer)


def _memory(database: Database) -> float:
    """The memory in bytes of the session that has carried out all operations."""
    with database.broker.connection() as connection, connection.cursor() as cursor:
        cursor.execute(MEMORY)
        (answer,) = cursor.fetchone() or (0,)
        return float(answer)


@dataclass
class Crowd:
    """The readings of many consumers at once: the lateness of their messages, and the errors."""

    lateness: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


def _crowd(database: Database, seconds: int, rate: int) -> Crowd:
    """30 waiting consumers, a wheel, and idle sessions up to the server's limit of 100 connections."""
    crowd = Crowd()
    lock = threading.Lock()
    stop = threading.Event()
    count = seconds * rate

    def consume() -> None:
        with Broker(database.dsn) as broker:
            while not stop.is_set():
                try:
                    consumer = broker.consumer(ours.TOPIC, ours.GROUP)
                    while not stop.is_set():
                        batch = consumer.receive(10, ours.INVISIBLE, timedelta(seconds=1))
                        began = time.time()
                        with lock:
                            crowd.lateness += [began - message.deliver_at.timestamp() for message in batch]
                        if batch:
                            consumer.ack(batch)
                except (DueWheelError, psycopg2.Error) as error:
                    with lock:
                        crowd.errors.append(_why(error))
                    stop.wait(0.1)

    try:
        _drain(database)
    except (DueWheelError, psycopg2.Error) as error:
        crowd.errors.append(_why(error))
    threads = [threading.Thread(target=consume) for _ in range(CONSUMERS)]
    with ExitStack() as stack:
        wheel = stack.enter_context(crew(1, workers.turn_wheel, database.dsn))
        wheel.wait_until_ready()
        for thread in threads:
            thread.start()
        # Once all consumers are connected, as many more sessions are opened as the server accepts; it keeps
        # three for superusers.
        stop.wait(2)
        with suppress(psycopg2.OperationalError):
            while (
                _one(database.dsn, "SELECT count(*) FROM pg_stat_activity WHERE backend_type ~ '^client'")
                < 96
            ):
                stack.enter_context(closing(connect(database.dsn)))
        try:
            start = ours.now() + timedelta(seconds=1)
            try:
                database.broker.send_many(
                    ours.TOPIC,
                    [
                        {"body": BODY, "deliver_at": start + timedelta(seconds=number / rate)}
                        for number in range(count)
                    ],
                )
            except (DueWheelError, psycopg2.Error) as error:
                with lock:
                    crowd.errors.append(_why(error))
            until = time.monotonic() + seconds + 6
            while len(crowd.lateness) < count and time.monotonic() < until:
                stop.wait(0.1)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
    crowd.lateness += [inf] * (count - len(crowd.lateness))
    return crowd


def horizon(bench: Bench) -> Iterator[Row]:
    """All operations at 60 days and at 10 years, against 1 day."""
    with ExitStack() as stack:
        databases: dict[str, Database] = {}
        notes: dict[str, list[str]] = {}
        for name, reach in HORIZONS.items():
            dsn = stack.enter_context(bench.server.duewheel())
            database = Database(name, reach, dsn, stack.enter_context(Broker(dsn)))
            databases[name] = database
            started = time.monotonic()
            try:
                sent = database.fill(bench.size(300, 15))
                notes[name] = [f"{name}: {sent} messages sent in {time.monotonic() - started:.0f} s"]
            except (DueWheelError, psycopg2.Error) as error:
                notes[name] = [f"{name}: sending what waits failed: {_why(error)}"]
        yield from _operations(bench, databases, notes)
        yield from _first_calls(bench, databases)
        for name, database in databases.items():
            fresh = _one(database.dsn, MEMORY)
            yield Row(
                f"memory-{name}",
                f"memory of a session after all of these, {name}",
                "MB",
                [_memory(database) / MEBIBYTE],
                [fresh / MEBIBYTE],
                "a fresh session",
                [Goal(15, "at most", "difference")] if name != NEAR else [],
            )
            yield Row(
                f"slots-{name}",
                f"slots on disk, {name}",
                "",
                [_one(database.dsn, SLOTS)],
                goals=[Goal(60, "at most", "ours")],
            )
        yield from _crowds(bench, databases)


def _operations(bench: Bench, databases: dict[str, Database], notes: dict[str, list[str]]) -> Iterator[Row]:
    readings: dict[tuple[str, str], list[float]] = {}
    for operation in OPERATIONS:
        calls = 3 if "send_many" in operation else CALLS
        for database in databases.values():
            # A session's first calls are measured by themselves.
            _reading(database, operation, 2)
        for pair in range(bench.pairs):
            for name in sorted(databases, reverse=bool(pair % 2)):
                reading = _reading(databases[name], operation, calls)
                readings.setdefault((operation, name), []).append(reading)
        for name in databases:
            if name == NEAR:
                continue
            failures = [
                f"{failed}: {database.failures[operation]}"
                for failed, database in databases.items()
                if operation in database.failures and failed in (name, NEAR)
            ]
            yield Row(
                f"{operation}-{name}",
                f"{operation}, p50, {name}",
                "ms",
                readings[operation, name],
                readings[operation, NEAR],
                NEAR,
                [Goal(1.5, "at most")],
                notes=failures + notes.pop(name, []),
            )
    for name in databases:
        yield Row(
            f"recall_key-recall-{name}",
            f"recall_key, p50, {name}",
            "ms",
            readings["recall_key", name],
            readings["recall", name],
            "recall",
            [Goal(2, "at most"), Goal(1, "at most", "ours")],
            notes=notes.pop(name, []),
        )


def _first_calls(bench: Bench, databases: dict[str, Database]) -> Iterator[Row]:
    for operation in FIRST_CALLS:
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in databases}
        for _ in range(bench.pairs + 1):
            for name, database in databases.items():
                consumer = database.consumer
                taken[name].append(_first_call(database, operation, consumer.group_id, consumer.topic_id))
        for name, pairs in taken.items():
            failure = databases[name].failures.get(f"first {operation}")
            yield Row(
                f"first-{operation}-{name}",
                f"the first {operation} on a new connection, {name}",
                "ms",
                [first for first, _ in pairs],
                [used for _, used in pairs],
                "the same on a used one",
                [Goal(12, "at most", "difference")],
                notes=[failure] if failure else [],
            )


def _crowds(bench: Bench, databases: dict[str, Database]) -> Iterator[Row]:
    seconds, rate = bench.size(20, 4), 50
    crowds = {name: _crowd(database, seconds, rate) for name, database in databases.items()}
    for name, crowd in crowds.items():
        what = f"{CONSUMERS} consumers, 100 connections, {name}"
        by_text: dict[str, int] = {}
        for text in crowd.errors:
            by_text[text] = by_text.get(text, 0) + 1
        yield Row(
            f"crowd-errors-{name}",
            f"{what}: errors",
            "",
            [float(len(crowd.errors))],
            goals=[Goal(0, "at most", "ours")],
            notes=[f"{thousands(count)} times: {text}" for text, count in by_text.items()],
        )
        yield Row(
            f"crowd-lateness-{name}",
            f"{what}: due instant to handler start, p99",
            "ms",
            [percentile(crowd.lateness, 99) * 1000],
            [percentile(crowds[NEAR].lateness, 99) * 1000] if name != NEAR else [],
            NEAR if name != NEAR else "",
            [Goal(1.5, "at most")] if name != NEAR else [],
        )


SUBJECTS = [Subject("horizon", "what it costs that messages reach far ahead", horizon)]

if __name__ == "__main__":
    main("horizon", __doc__, SUBJECTS)
