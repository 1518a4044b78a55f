"""A worker: a process of its own that does one thing to the broker and logs it, as ``records.py`` says.

Run as ``python traffic.py ROLE DSN LOG SEED``; it ends when there is a file ``enough`` beside the log.

Roles: ``sender``, ``recaller``, ``consumer``, ``dawdler``, ``worker``, ``ordered_sender``,
``ordered_consumer``, ``forker``, ``keeper``, ``wheel``, ``ticker``.

Environment:
    DUEWHEEL_CHAOS_MOST: the largest batch of a consumer; 100 without it.
    DUEWHEEL_CHAOS_POOLED: set where a pooler shares sessions.
"""

from __future__ import annotations

import faulthandler
import itertools
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg2

from duewheel.store.broker import Broker
from duewheel.store.consuming.consumer import Consumer
from duewheel.store.database.connections import DriverConnection
from duewheel.store.database.forking import no_fork_meanwhile
from duewheel.store.values.errors import AlreadyReleased, BrokerUnreachable, LeaseLost
from duewheel.store.values.messages import Batch, RecallOutcome

TOPIC = "traffic"
GROUPS = ("one", "two")
#: Its consumers write a row of ``effect`` in the transaction of their ack.
EFFECTS_GROUP = "effects"
ORDERED_TOPIC = "ordered"
ORDERED_GROUP = "in_order"
MESSAGE_GROUPS = ("a", "b", "c")
#: Short, so that leases of killed consumers end within the test.
INVISIBLE = timedelta(seconds=2)

_RECEIVE = """
select convert_from(body, 'UTF8'), message_id, attempt, extract(epoch from expires_at),
       extract(epoch from deliver_at)
from duewheel.receive(%s, %s, max_messages => %s, invisible => '2 seconds')
"""
_NOW = "select extract(epoch from clock_timestamp())"

#: So many messages a sender lets be ready before it waits.
MOST_BEHIND = 200
#: In one batch of a consumer.
MOST = int(os.environ.get("DUEWHEEL_CHAOS_MOST", "100"))
#: In one receive of those who take what is left at the end.
LARGEST_RECEIVE = 1_000
#: Threads and children of a process that share its broker.
_SHARERS = 4
_LONGEST_STEP_SECONDS = 120

#: Looked for so often by a wheel; the others do so between two steps.
_LOOK_SECONDS = 0.05


def enough_of(directory: Path) -> Path:
    """The file that ends the workers who log to a folder."""
    return directory / "enough"


class Log:
    """Appends lines; each is handed to the system in one write."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def __call__(self, what: str, **values: object) -> None:
        os.write(self._file, json.dumps({"what": what, "at": time.time(), **values}).encode() + b"\n")


class Worker:
    """The common parts of every role: a broker, a log, chance, and an end."""

    def __init__(self, dsn: str, log: Path, seed: int) -> None:
        self.dsn = dsn
        self.broker = Broker(dsn, listen="DUEWHEEL_CHAOS_POOLED" not in os.environ)
        self.log = Log(log)
        self.chance = random.Random(seed)
        self.enough = enough_of(log.parent)
        self.shared = log.parent / "sent"
        self.numbers = itertools.count(1)
        self.name = log.stem

    def turns(self, step: Callable[[], None]) -> None:
        """Take steps until the end; a server that is away for a moment is come back to."""
        while not self.enough.exists():
            try:
                step()
            except (BrokerUnreachable, psycopg2.OperationalError, psycopg2.InterfaceError) as error:
                self.log("unreachable", error=str(error)[:80])
                time.sleep(0.05)

    @contextmanager
    def transaction(self) -> Iterator[DriverConnection]:
        """A transaction of the worker's own, at the level that the broker's functions ask for."""
        with no_fork_meanwhile():
            connection = psycopg2.connect(self.dsn)
        with closing(connection):
            connection.set_session(isolation_level="READ COMMITTED")
            yield connection

    def new_message(self) -> dict[str, Any]:
        """A message whose body is unique; often due before its sender commits."""
        delay = timedelta(seconds=self.chance.choice([0, 0, 0.05, 0.3, 1, self.chance.uniform(0, 3)]))
        return {"body": f"{self.name}-{next(self.numbers)}", "delay": delay}

    def sender(self) -> None:
        """One message, a transaction that stays open for up to 1.5 s, or many at once; some roll back."""
        self.leave_time(TOPIC, GROUPS)
        if self.chance.random() < 0.4:
            message = self.new_message()
            self.log("sending", bodies=[message["body"]])
            receipt = self.broker.send(TOPIC, **message)
            self.committed([message["body"]], [receipt.message_id])
            return
        count = self.chance.choice([1, 2, 5, 200])
        messages = [self.new_message() for _ in range(count)]
        names = [message["body"] for message in messages]
        self.log("sending", bodies=names)
        with self.transaction() as connection:
            if count > 5:
                receipts = list(self.broker.send_many(TOPIC, messages, connection=connection))
            else:
                receipts = [self.broker.send(TOPIC, **m, connection=connection) for m in messages]
            ids = [receipt.message_id for receipt in receipts]
            # The transaction is open meanwhile: that is what is tested.
            time.sleep(self.chance.choice([0, 0.01, self.chance.uniform(0, 1.5)]))
            if self.chance.random() < 0.25:
                connection.rollback()
                self.log("rolled back", bodies=names)
            else:
                connection.commit()
                self.committed(names, ids)

    def leave_time(self, topic: str, groups: Sequence[str]) -> None:
        """Now and then wait for consumers that are far behind: only a fault is to make messages late."""
        topics = [topic] * len(groups)
        if self.chance.random() < 0.1:
            while not self.enough.exists() and any(
                bell.ready > MOST_BEHIND for bell in self.broker.doorbells(topics, groups)
            ):
                time.sleep(0.1)

    def committed(self, bodies: list[str], ids: list[str]) -> None:
        """The commit was answered: these exist. Recallers choose among them."""
        self.log("sent", bodies=bodies, ids=ids)
        with self.shared.open("a") as shared:
            shared.write("".join(f"{body} {identity}\n" for body, identity in zip(bodies, ids, strict=True)))

    def recaller(self) -> None:
        """Recalls around the instant of release, at once or in a transaction that stays open."""
        newest = self.shared.read_text().splitlines()[-400:] if self.shared.exists() else []
        if not newest:
            time.sleep(0.01)
            return
        body, identity = self.chance.choice(newest).split()
        self.log("recalling", body=body)
        if self.chance.random() < 0.5:
            outcome = self.broker.recall(identity).outcome
            self.log("recall", body=body, outcome=outcome.value)
            return
        with self.transaction() as connection:
            outcome = self.broker.recall(identity, connection=connection).outcome
            time.sleep(self.chance.choice([0, 0.05, self.chance.uniform(0, 0.5)]))
            try:
                if self.chance.random() < 0.2:
                    connection.rollback()
                    self.log("recall", body=body, outcome="rolled back")
                    return
                connection.commit()
            except psycopg2.Error as error:
                if error.pgcode != AlreadyReleased.sqlstate:
                    raise
                outcome = RecallOutcome.ALREADY_RELEASED
            self.log("recall", body=body, outcome=outcome.value)

    def consumer(self) -> None:
        """Receives for one group, says what and when by the database's clock, and acks most of it."""
        group = GROUPS[self.chance.randrange(len(GROUPS))]
        consumer = self.broker.consumer(TOPIC, group)
        batch = self.received(consumer, self.chance.choice([1, 7, MOST]))
        if not batch:
            return
        fate = self.chance.random()
        if fate < 0.03:
            # Nobody answers; the lease ends.
            return
        names = [m.body.decode() for m in batch]
        try:
            if fate < 0.06:
                self.answering("nacking", batch, group)
                consumer.nack(batch, timedelta(seconds=0.1))
                self.log("nacked", group=group, bodies=names)
            elif fate < 0.2:
                with self.transaction() as connection:
                    consumer.ack(batch, connection=connection)
                    time.sleep(self.chance.uniform(0, 0.3))
                    if fate < 0.1:
                        connection.rollback()
                        return
                    self.answering("acking", batch, group)
                    connection.commit()
                    self.log("acked", group=group, bodies=names)
            else:
                self.answering("acking", batch, group)
                consumer.ack(batch)
                self.log("acked", group=group, bodies=names)
        except LeaseLost:
            self.log("lease lost", group=group, bodies=names)

    def answering(self, what: str, batch: Batch, group: str) -> None:
        """It is about to answer a batch. Attempts tell its deliveries from older ones, answered late."""
        bodies, attempts = [m.body.decode() for m in batch], [m.attempt for m in batch]
        self.log(what, group=group, bodies=bodies, attempts=attempts)

    def received(self, consumer: Consumer, most: int) -> Batch:
        """What one receive brings; logged with the database's clock before and after it."""
        after_at = self.clock()
        batch = consumer.receive(most, INVISIBLE, timedelta(seconds=0.2))
        if batch:
            self.log(
                "received",
                group=consumer.group,
                after_at=after_at,
                before_at=self.clock(),
                messages=[
                    (
                        *(m.body.decode(), m.message_id, m.attempt, m.lease.expires_at.timestamp()),
                        *(m.deliver_at.timestamp(), m.message_group),
                    )
                    for m in batch
                ],
            )
        return batch

    def clock(self) -> float:
        """The database's clock, in seconds since 1970."""
        with self.broker.connection() as connection, connection.cursor() as cursor:
            cursor.execute(_NOW)
            ((now,),) = cursor.fetchall()
        return float(now)

    def dawdler(self) -> None:
        """Receives in a transaction that stays open."""
        group = GROUPS[self.chance.randrange(len(GROUPS))]
        after_at = self.clock()
        with self.transaction() as connection, connection.cursor() as cursor:
            cursor.execute(_RECEIVE, (TOPIC, group, self.chance.choice([1, 20])))
            messages = [(*row[:3], *map(float, row[3:])) for row in cursor.fetchall()]
            # It holds up nobody who releases.
            time.sleep(self.chance.choice([0, 0.2, 1.3]))
            connection.commit()
        if messages:
            self.log("received", group=group, after_at=after_at, before_at=self.clock(), messages=messages)

    def worker(self) -> None:
        """Does its work, a row, in the transaction of the ack."""
        consumer = self.broker.consumer(TOPIC, EFFECTS_GROUP)
        batch = self.received(consumer, self.chance.choice([1, 20]))
        if not batch:
            return
        names = [m.body.decode() for m in batch]
        with self.transaction() as connection, connection.cursor() as cursor:
            cursor.executemany("insert into effect values (%s)", [(name,) for name in names])
            time.sleep(self.chance.choice([0, 0, 0.1, 2.5]))
            self.answering("acking", batch, EFFECTS_GROUP)
            try:
                consumer.ack(batch, connection=connection)
            except LeaseLost:
                connection.rollback()
                self.log("lease lost", group=EFFECTS_GROUP, bodies=names)
                return
            connection.commit()
        self.log("acked", group=EFFECTS_GROUP, bodies=names)

    def ordered_sender(self) -> None:
        """Into a few message groups, which no other sender has: one, many, or in an open transaction."""
        self.leave_time(ORDERED_TOPIC, [ORDERED_GROUP])
        count = self.chance.choice([1, 1, 1, 3, 10])
        bodies = [f"{self.name}-{next(self.numbers)}" for _ in range(count)]
        groups = [f"{self.name}-{self.chance.choice(MESSAGE_GROUPS)}" for _ in bodies]
        messages = [{"body": b, "message_group": g} for b, g in zip(bodies, groups, strict=True)]
        self.log("sending", bodies=bodies)
        if count == 3:
            with self.transaction() as connection:
                receipts = [self.broker.send(ORDERED_TOPIC, **m, connection=connection) for m in messages]
                time.sleep(self.chance.uniform(0, 0.15))
                connection.commit()
        else:
            receipts = list(self.broker.send_many(ORDERED_TOPIC, messages))
        for body, group, receipt in zip(bodies, groups, receipts, strict=True):
            self.log("sent", bodies=[body], ids=[receipt.message_id], message_group=group)
        time.sleep(self.chance.uniform(0, 0.05))

    def ordered_consumer(self) -> None:
        """Takes some in order; some fail, some outlast their lease, some are left to its end."""
        consumer = self.broker.consumer(ORDERED_TOPIC, ORDERED_GROUP)
        batch = self.received(consumer, self.chance.choice([1, 5, 20]))
        if not batch or self.chance.random() < 0.01:
            return
        names = [m.body.decode() for m in batch]
        try:
            if self.chance.random() < 0.01:
                time.sleep(INVISIBLE.total_seconds() + 0.2)
            if self.chance.random() < 0.1:
                self.answering("nacking", batch, ORDERED_GROUP)
                consumer.nack(batch, timedelta(seconds=self.chance.choice([0, 0.1])))
            else:
                self.answering("acking", batch, ORDERED_GROUP)
                consumer.ack(batch)
                self.log("acked", group=ORDERED_GROUP, bodies=names)
        except LeaseLost:
            self.log("lease lost", group=ORDERED_GROUP, bodies=names)

    def forker(self) -> None:
        """Threads and children of fork that send and receive by one broker, at the same time."""
        with ThreadPoolExecutor(_SHARERS) as threads:
            steps = [threads.submit(step) for step in (self.sender, self.consumer) for _ in range(2)]
            for _ in range(_SHARERS):
                self.in_a_child(self.sender)
            for step in steps:
                step.result()

    def in_a_child(self, step: Callable[[], None]) -> None:
        """Take a step in a child of fork; one that hangs is killed."""
        child = os.fork()
        if child == 0:
            status = 1
            try:
                # It says where it hung before it dies.
                faulthandler.register(signal.SIGALRM, chain=True)
                signal.alarm(_LONGEST_STEP_SECONDS)
                self.name = f"{self.name}-{os.getpid()}"
                step()
                status = 0
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            raise RuntimeError("a child of fork hung")

    def keeper(self) -> None:
        """Does upkeep again and again."""
        self.broker.maintain()

    def ticker(self) -> None:
        """A second wheel of the simplest kind."""
        self.broker.tick(TOPIC)
        time.sleep(0.01)

    def wheel(self) -> None:
        """The wheel that is shipped."""
        stop = threading.Event()
        with ThreadPoolExecutor(1) as threads:
            turning = threads.submit(self.broker.wheel().run, stop)
            while not turning.done() and not self.enough.exists():
                wait([turning], _LOOK_SECONDS)
            stop.set()
            turning.result()


def main() -> None:
    """Be one worker until its time is over."""
    # Whoever waits for its end in vain is told where it is.
    faulthandler.register(signal.SIGUSR1)
    role, dsn, log, seed = sys.argv[1:]
    worker = Worker(dsn, Path(log), int(seed))
    if role == "wheel":
        worker.wheel()
    else:
        worker.turns(getattr(worker, role))
    worker.log("done")


if __name__ == "__main__":
    main()
