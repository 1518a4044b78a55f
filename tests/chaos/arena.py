"""Where a fault happens: a server of its own, and workers on it whose logs the checker reads."""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Protocol

import psycopg2
from tests.chaos import traffic
from tests.chaos.records import Delivery, Records, lines, read
from tests.chaos.traffic import EFFECTS_GROUP, GROUPS, LARGEST_RECEIVE, ORDERED_GROUP, ORDERED_TOPIC, TOPIC
from tests.clock import believe
from tests.faked_time import set_clock, told_by
from tests.servers import InstalledPostgres, programs
from tests.waiting import PATIENCE_SECONDS, ask, connected, until

from duewheel.store.broker import Broker
from duewheel.store.values.errors import BrokerUnreachable, LeaseLost
from duewheel.store.values.messages import Message

#: Long enough to ack; the end waits for the instant at which the last lease would have ended.
UNHURRIED = timedelta(seconds=5)
#: As on a server that is looked after by nobody; two for the standby of a fault that has one.
SETTINGS: Mapping[str, object] = {"max_prepared_transactions": 20, "wal_level": "logical"}
#: By then everything is past its retention: 30 days for dead letters, and whatever waited.
LONG_AFTERWARDS = timedelta(days=40)
#: Tables that have no row for a message or what happens to one.
KEPT = (
    *("alembic_version", "broker", "consumer_group", "dropped_slot", "report", "slot", "subscription"),
    *("schedule", "topic"),
)
_TABLES = """
select relname from pg_class
where relnamespace = 'duewheel'::regnamespace and relkind in ('r', 'p') and not relispartition
  and not relname = any (%s)
"""
_SESSIONS = """
select pid, pg_blocking_pids(pid), state, wait_event_type, wait_event, clock_timestamp() - xact_start, query
from pg_stat_activity where datname = current_database() and backend_type = 'client backend'
"""
_QUEUES = """
select coalesce(sum(t.queues), 0) from duewheel.topic t
left join duewheel.subscription s on t.topic_id in (s.topic_id, s.retry_topic_id)
"""
#: What a run has at least, so that its promises were at stake.
LEAST_SENT = 100
CAST = (
    *("sender", "sender", "recaller", "consumer", "consumer", "dawdler", "worker"),
    *("ordered_sender", "ordered_consumer", "wheel", "wheel"),
)


class Surroundings(Protocol):
    """What a fault asks for."""

    @property
    def clock_moves(self) -> bool:
        """Whether it moves the server's clock."""

    @property
    def disk_mib(self) -> int | None:
        """The size of the cluster's file system; None is the machine's."""

    @property
    def settings(self) -> Mapping[str, object]:
        """Of the server."""


@dataclass
class Crew:
    """The running workers and where they log."""

    dsn: str
    directory: Path
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)
    roles: dict[int, str] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def start(
        self, role: str, dsn: str | None = None, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start one more worker of a role; it goes on until :meth:`end`.

        Args:
            role: as in ``traffic.py``.
            dsn: another address than the broker's.
            environment: further variables.
        """
        number = next(self.numbers)
        name = f"{role}{number}"
        with (self.directory / f"{name}.err").open("wb") as errors:
            process = subprocess.Popen(
                [
                    *(sys.executable, traffic.__file__, role, self.dsn if dsn is None else dsn),
                    *(str(self.directory / f"{name}.log"), str(number)),
                ],
                stdin=subprocess.DEVNULL,
                stderr=errors,
                env={**os.environ, **(environment or {})},
            )
        self.roles[process.pid] = role
        self.running.append(process)
        return process

    def of_role(self, role: str) -> list[subprocess.Popen[bytes]]:
        """The workers of a role that run."""
        return [process for process in list(self.running) if self.roles[process.pid] == role]

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """SIGKILL, wherever it is; another fault may have done it."""
        with suppress(ValueError):
            self.running.remove(process)
            process.send_signal(signal.SIGKILL)
            process.wait()

    def kill_one(self, role: str, chance: random.Random) -> None:
        """SIGKILL for one of a role; for none where another fault has just killed all of them."""
        if running := self.of_role(role):
            self.kill(chance.choice(running))

    def receives(self) -> int:
        """How many receives brought something."""
        return self._said("received")

    def failures(self) -> int:
        """How many steps failed for want of a server."""
        return self._said("unreachable")

    def _said(self, what: str) -> int:
        return sum(line["what"] == what for line in lines(self.directory))

    def check_alive(self) -> None:
        """None has ended by itself."""
        ended = [self.roles[process.pid] for process in list(self.running) if process.poll() is not None]
        assert not ended, f"{ended} ended: {self._errors()}"

    def _errors(self) -> list[str]:
        return [path.read_text() for path in self.directory.glob("*.err") if path.stat().st_size]

    def is_enough(self) -> bool:
        """Whether there was something of everything that is held against the promises; all are at work."""
        self.check_alive()
        records = read(self.directory)
        return (
            len(records.sent) > LEAST_SENT
            and bool(records.recalled)
            and any(group == EFFECTS_GROUP for group, _ in records.acked)
            and any(group == ORDERED_GROUP for group, _ in records.acked)
        )

    def end(self) -> None:
        """Let all come to their end; each must end well."""
        traffic.enough_of(self.directory).touch()
        for process in self.running:
            try:
                process.wait(timeout=PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                raise AssertionError(self._whereabouts(process)) from None
        assert [process.returncode for process in self.running] == [0] * len(self.running), self._errors()

    def _whereabouts(self, process: subprocess.Popen[bytes]) -> str:
        """Where a worker is that does not come to its end, and what the server's sessions do meanwhile."""
        process.send_signal(signal.SIGUSR1)
        with connected(self.dsn) as connection:
            sessions = ask(connection, _SESSIONS)
        said = [*self._errors(), *map(str, sessions)]
        return "\n".join([f"a {self.roles[process.pid]} does not come to its end:", *said])

    def leave(self) -> None:
        """Nothing stays behind."""
        for process in self.running:
            if process.poll() is None:
                process.kill()
            process.wait()


@dataclass
class Arena:
    """A fault's surroundings.

    Attributes:
        server: it can be stopped and started.
        dsn: the broker's database.
        crew: the workers.
        directory: a folder for what a fault writes.
        chance: of the run's seed.
        seconds: how long the fault is to go on.
    """

    server: InstalledPostgres
    dsn: str
    crew: Crew
    directory: Path
    chance: random.Random
    seconds: float

    def set_clock(self, ahead_seconds: int) -> None:
        """Have the server's clock be ahead, of a fault that moves it."""
        set_clock(clock_of(self.directory), ahead_seconds)

    def receive_more(self) -> None:
        """Return when the workers have received something further."""
        before = self.crew.receives()

        def is_more() -> bool:
            self.crew.check_alive()
            return self.crew.receives() > before

        until(is_more, "the workers to receive something", pause_seconds=0.05)

    def rounds(self, pause_seconds: float = 0.0) -> Iterator[int]:
        """Numbers of rounds, two at least, until the time is over; before each the workers got something."""
        ends = time.monotonic() + self.seconds
        number = 0
        while number < 2 or time.monotonic() < ends:
            self.receive_more()
            number += 1
            yield number
            time.sleep(pause_seconds)


def clock_of(directory: Path) -> Path:
    """The file that moves a server's clock."""
    return directory / "clock"


@contextmanager
def disk(directory: Path, size_mib: int | None) -> Iterator[Path]:
    """A folder for a cluster, on a file system of its own if that has a size. Only root may make one."""
    if size_mib is None:
        yield directory
        return
    folder = directory / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_mib}m", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@contextmanager
def arena(directory: Path, seed: int, seconds: float, surroundings: Surroundings) -> Iterator[Arena]:
    """A server with the broker, and workers at work.

    Args:
        directory: an empty folder.
        seed: of every choice.
        seconds: how long the fault is to go on.
        surroundings: what the fault asks for.
    """
    logs = directory / "logs"
    logs.mkdir()
    environment = None
    if surroundings.clock_moves:
        set_clock(clock_of(directory), 0)
        environment = told_by(clock_of(directory))
    settings = {**SETTINGS, **surroundings.settings}
    with (
        disk(directory, surroundings.disk_mib) as place,
        InstalledPostgres(programs(), place / "data", environment, **settings) as server,
    ):
        dsn = server.ensure_database("chaos")
        with Broker(dsn) as broker:
            broker.upgrade()
            broker.create_topic(TOPIC, queues=3)
            broker.create_topic(ORDERED_TOPIC, queues=2, message_type="FIFO")
            broker.maintain()
            for group in (*GROUPS, EFFECTS_GROUP):
                broker.consumer(TOPIC, group)
            broker.consumer(ORDERED_TOPIC, ORDERED_GROUP)
        with connected(dsn) as connection:
            # It flushes the log up to here: a fault loses commits of the workers, never what they work on.
            ask(connection, "set synchronous_commit = on")
            ask(connection, "create table effect (body text)")
        crew = Crew(dsn, logs)
        try:
            for role in CAST:
                crew.start(role)
            yield Arena(server, dsn, crew, directory, random.Random(seed), seconds)
        finally:
            crew.leave()


def finish(stage: Arena) -> Records:
    """Let the workers end, take what is left, and return all records."""
    until(stage.crew.is_enough, "something of everything", pause_seconds=0.1)
    stage.crew.end()
    records = read(stage.crew.directory)
    with Broker(stage.dsn) as broker:
        for topic, group in (
            *((TOPIC, name) for name in (*GROUPS, EFFECTS_GROUP)),
            (ORDERED_TOPIC, ORDERED_GROUP),
        ):
            records.drained += drained(broker, topic, group)
    with connected(stage.dsn) as connection:
        records.effects = [body for (body,) in ask(connection, "select body from effect")]
    records.left, records.queues = past_retention(stage.dsn)
    return records


def upkeep_is_done(dsn: str) -> float:
    """After how many seconds a whole round of upkeep was done, of which wheels do one an hour."""
    began = time.monotonic()
    with connected(dsn) as connection, Broker(dsn) as broker:
        ((asked_at,),) = ask(connection, "select clock_timestamp()")

        def is_done() -> bool:
            with suppress(BrokerUnreachable, psycopg2.OperationalError):
                broker.maintain()
            return bool(ask(connection, "select 1 from duewheel.broker where maintained_at >= %s", asked_at))

        until(is_done, "a round of upkeep", pause_seconds=0.1)
    return time.monotonic() - began


def past_retention(dsn: str) -> tuple[dict[str, int], int]:
    """What upkeep leaves when everything is past its retention, and of how many queues, for each group."""
    with connected(dsn) as connection:
        ((now,),) = ask(connection, "select clock_timestamp()")
        believe(dsn, now + LONG_AFTERWARDS)
        with Broker(dsn, clock=lambda: now + LONG_AFTERWARDS) as broker:
            for topic in broker.topics():
                broker.tick(topic.name)
            for group in broker.groups():
                consumer = broker.consumer(group.topic, group.group)
                while batch := consumer.receive(LARGEST_RECEIVE, UNHURRIED):
                    consumer.ack(batch)
            # What had moved out of its slot goes with the second round.
            for _ in range(2):
                broker.maintain()
        left = {
            name: int(ask(connection, f"select count(*) from duewheel.{name}")[0][0])
            for (name,) in ask(connection, _TABLES, list(KEPT))
        }
        ((queues,),) = ask(connection, _QUEUES)
    return left, int(queues)


def _clock(broker: Broker) -> float:
    with broker.connection() as connection:
        ((now,),) = ask(connection, "select extract(epoch from clock_timestamp())")
    return float(now)


def _delivery(group: str, message: Message, after_at: float, before_at: float) -> Delivery:
    expires_at = message.lease.expires_at
    return Delivery(
        *(group, message.body.decode(), message.message_id, message.attempt, after_at, before_at),
        *((expires_at - UNHURRIED).timestamp(), expires_at.timestamp(), message.deliver_at.timestamp()),
        *(time.time(), message.message_group),
    )


def drained(broker: Broker, topic: str, group: str) -> Iterator[Delivery]:
    """Receive and ack until nothing is left, leases of the killed included."""
    consumer = broker.consumer(topic, group)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            after_at = _clock(broker)
            batch = consumer.receive(LARGEST_RECEIVE, UNHURRIED)
            if batch:
                before_at = _clock(broker)
                yield from (_delivery(group, message, after_at, before_at) for message in batch)
                deadline = time.monotonic() + PATIENCE_SECONDS
                consumer.ack(batch)
            else:
                (bell,) = broker.doorbells([topic], [group])
                if not bell.ready and not bell.inflight and bell.next_at is None:
                    return
        except LeaseLost:
            # Too slow: they come again.
            continue
        except (BrokerUnreachable, psycopg2.OperationalError):
            # A fault may leave broken connections in the pool.
            continue
        assert time.monotonic() < deadline, f"{group} is still not done"
