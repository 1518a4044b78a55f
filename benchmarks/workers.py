"""The work of the separate processes: the wheel, our consumers, and the pollers of a table."""

from __future__ import annotations

import resource
import threading
import time
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta

from benchmarks import ours
from benchmarks.processes import Desk
from benchmarks.server import connect
from benchmarks.tables import Table
from duewheel.store import Batch, Broker

#: The wait of a consumer's long poll, and a poller's sleep when it finds nothing, in seconds.
WAIT = timedelta(seconds=5)
POLL_SECONDS = 0.005


@dataclass
class Work:
    """The work of one consumer: how many messages, until when, how late each, and the CPU share of idling."""

    messages: int = 0
    last_at: float = 0.0
    lateness: list[float] = field(default_factory=list)
    idle_cpu_share: float = 0.0
    idle_from: float = field(default_factory=time.monotonic)
    idle_cpu: float = field(default_factory=lambda: _cpu_seconds())

    def began(self) -> float:
        """The present instant, at which a batch begins; the first one ends the idle time."""
        if not self.messages:
            self.idle_cpu_share = (_cpu_seconds() - self.idle_cpu) / (time.monotonic() - self.idle_from)
        return time.time()

    def did(self, messages: int, desk: Desk) -> None:
        """Count messages, here and on the desk."""
        self.messages += messages
        self.last_at = time.time()
        desk.count(messages)


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def spin(desk: Desk) -> None:
    """Use a whole processor until the stop."""
    desk.begin()
    while not desk.stop.is_set():
        sum(range(100_000))


def turn_wheel(desk: Desk, dsn: str) -> None:
    """Run the wheel until the stop."""
    stop = threading.Event()

    def watch() -> None:
        desk.stop.wait()
        stop.set()

    threading.Thread(target=watch, daemon=True).start()
    with Broker(dsn) as broker:
        runner = broker.wheel()
        desk.ready.release()
        runner.run(stop)


def consume(
    desk: Desk,
    dsn: str,
    table: Table,
    size: int,
    total: int,
    is_punctual: bool = False,
    is_durable: bool = True,
) -> None:
    """Receive and ack batches of `size` until all consumers together have done `total`.

    A consumer that `is_punctual` waits for due messages, and notes how late each began.
    """
    with Broker(dsn) as broker:
        consumer = broker.consumer(ours.TOPIC, ours.GROUP, durable_acks=is_durable)
        with broker.connection():
            pass
        if is_punctual:
            consumer.receive(1)
        desk.begin()
        work = Work()
        batch: Batch | tuple[()] = ()
        while desk.done.value < total and not desk.stop.is_set():
            batch = consumer.receive(size, ours.INVISIBLE, WAIT, acked=batch)
            if batch:
                began = work.began()
                if is_punctual:
                    work.lateness += [began - message.deliver_at.timestamp() for message in batch]
                list(map(table.look, [message.body for message in batch]))
                work.did(len(batch), desk)
        if batch:
            consumer.ack(batch)
            work.last_at = time.time()
    desk.results.put(work)


def poll(desk: Desk, dsn: str, table: Table, size: int, total: int, is_punctual: bool = False) -> None:
    """The same with a table that is polled every 5 ms."""
    with closing(connect(dsn)) as connection:
        table.claim(connection, size if is_punctual else 0)
        desk.begin()
        work = Work()
        while desk.done.value < total and not desk.stop.is_set():
            rows = table.claim(connection, size)
            if not rows:
                time.sleep(POLL_SECONDS)
                continue
            began = work.began()
            if is_punctual:
                work.lateness += [began - row[1].timestamp() for row in rows]
            list(map(len, [row[-1] for row in rows]))
            table.complete(connection, rows)
            work.did(len(rows), desk)
    desk.results.put(work)
