"""The work of the separate processes: the wheel, our consumers, and the pollers of the status table."""

from __future__ import annotations

import resource
import threading
import time
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta

from benchmarks import ours, status_table
from benchmarks.messages import handle
from benchmarks.processes import Desk
from benchmarks.server import connect
from duewheel.store import Broker

#: How long a consumer's long poll may wait, and how long a poller sleeps when it finds nothing, in seconds.
WAIT = timedelta(seconds=5)
POLL_SECONDS = 0.005


@dataclass
class Work:
    """The work of one consumer: how many messages, until when, how late each began, and the CPU share of
    idling."""

    messages: int = 0
    last_at: float = 0.0
    lateness: list[float] = field(default_factory=list)
    idle_cpu_share: float = 0.0


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


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


def consume(desk: Desk, dsn: str, size: int, total: int) -> None:
    """Receive and ack batches of `size` until all consumers together have done `total`."""
    work = Work()
    with Broker(dsn) as broker:
        consumer = broker.consumer(ours.TOPIC, ours.GROUP)
        with broker.connection():
            pass
        desk.begin()
        while desk.done.value < total:
            batch = consumer.receive(size, ours.INVISIBLE, WAIT)
            if batch:
                handle(message.body for message in batch)
                consumer.ack(batch)
                work.messages += len(batch)
                work.last_at = time.time()
                if desk.count(len(batch)) >= total:
                    break
    desk.results.put(work)


def poll(desk: Desk, dsn: str, size: int, total: int) -> None:
    """Claim and complete batches of `size` until all pollers together have done `total`."""
    work = Work()
    with closing(connect(dsn)) as connection:
        status_table.claim(connection, size=0)
        desk.begin()
        while desk.done.value < total:
            rows = status_table.claim(connection, size=size)
            if not rows:
                time.sleep(POLL_SECONDS)
                continue
            handle(row[-1] for row in rows)
            status_table.complete(connection, rows)
            work.messages += len(rows)
            work.last_at = time.time()
            if desk.count(len(rows)) >= total:
                break
    desk.results.put(work)


def consume_punctually(desk: Desk, dsn: str, size: int, total: int) -> None:
    """Receive and ack until `total` are done, noting how late each message's handler began."""
    work = Work()
    with Broker(dsn) as broker:
        consumer = broker.consumer(ours.TOPIC, ours.GROUP)
        consumer.receive(1)
        desk.begin()
        idle_from, cpu_before = time.monotonic(), _cpu_seconds()
        while work.messages < total and not desk.stop.is_set():
            batch = consumer.receive(size, ours.INVISIBLE, WAIT)
            began = time.time()
            if batch and not work.messages:
                work.idle_cpu_share = (_cpu_seconds() - cpu_before) / (time.monotonic() - idle_from)
            if batch:
                work.lateness += [began - message.deliver_at.timestamp() for message in batch]
                consumer.ack(batch)
                work.messages += len(batch)
    work.last_at = time.time()
    desk.results.put(work)


def poll_punctually(desk: Desk, dsn: str, size: int, total: int) -> None:
    """The same with the status table, looking every 5 ms."""
    work = Work()
    with closing(connect(dsn)) as connection:
        status_table.claim(connection, size=size)
        desk.begin()
        idle_from, cpu_before = time.monotonic(), _cpu_seconds()
        while work.messages < total and not desk.stop.is_set():
            rows = status_table.claim(connection, size=size)
            began = time.time()
            if not rows:
                time.sleep(POLL_SECONDS)
                continue
            if not work.messages:
                work.idle_cpu_share = (_cpu_seconds() - cpu_before) / (time.monotonic() - idle_from)
            work.lateness += [began - row[2].timestamp() for row in rows]
            status_table.complete(connection, rows)
            work.messages += len(rows)
    work.last_at = time.time()
    desk.results.put(work)
