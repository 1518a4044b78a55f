"""A hundred thousand messages due at one instant, four consumers waiting: until the last is handled.

Both sides are loaded ahead of time and wait for the instant: our consumers in their long poll with the
wheel in a process of its own, the pollers of the status table looking every 5 ms.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta
from functools import partial

from benchmarks import ours, status_table, workers
from benchmarks.bench import Bench, Subject
from benchmarks.measure import Goal, Row, interleave, thousands
from benchmarks.messages import Order, chunks, orders
from benchmarks.processes import crew
from benchmarks.server import connect, settle
from duewheel.store import Broker

CONSUMERS = 4
TIMEOUT_SECONDS = 300.0
#: Long enough to load, come to rest and start the processes.
LEAD = timedelta(seconds=15)


def _due_together(count: int, seed: int) -> tuple[datetime, list[list[Order]]]:
    due_at = ours.now().replace(microsecond=0) + LEAD
    together = [
        Order(order.number, due_at, order.body, order.key)
        for order in orders(count, start=due_at, within=timedelta(seconds=1), seed=seed)
    ]
    return due_at, chunks(together, 10_000)


def _handled_after(due_at: datetime, count: int, done: list[workers.Work]) -> float:
    handled = sum(work.messages for work in done)
    if handled != count:
        raise RuntimeError(f"{count} messages were sent, {handled} handled")
    return max(work.last_at for work in done) - due_at.timestamp()


def _in_time(due_at: datetime) -> None:
    if ours.now() > due_at:
        raise RuntimeError(f"loading took longer than {LEAD.total_seconds():.0f} s, the instant has passed")


def _ours(bench: Bench, size: int, count: int, pair: int) -> float:
    with bench.server.duewheel() as dsn:
        ours.create_topic(dsn)
        due_at, loads = _due_together(count, pair)
        with (
            crew(1, workers.turn_wheel, dsn) as wheel,
            crew(CONSUMERS, workers.consume, dsn, size, count) as consumers,
        ):
            with Broker(dsn) as broker:
                for load in loads:
                    ours.send(broker, load)
            settle(dsn)
            wheel.wait_until_ready()
            consumers.go()
            _in_time(due_at)
            return _handled_after(due_at, count, consumers.collect(timeout_seconds=TIMEOUT_SECONDS))


def _status(bench: Bench, size: int, count: int, pair: int) -> float:
    with bench.server.empty() as dsn, closing(connect(dsn)) as connection:
        status_table.create(connection)
        due_at, loads = _due_together(count, pair)
        with crew(CONSUMERS, workers.poll, dsn, size, count) as pollers:
            for load in loads:
                status_table.copy(connection, load, born_at=ours.now())
            settle(dsn)
            pollers.go()
            _in_time(due_at)
            return _handled_after(due_at, count, pollers.collect(timeout_seconds=TIMEOUT_SECONDS))


def flood(bench: Bench) -> Iterator[Row]:
    """Until the last of 100 000 is handled, in batches of 100 and of 1 000."""
    count = bench.size(100_000, 20_000)
    for size in (100, 1_000):
        readings, baseline = interleave(
            partial(_ours, bench, size, count), partial(_status, bench, size, count), pairs=bench.pairs
        )
        yield Row(
            f"flood-{size}",
            f"{thousands(count)} due at one instant, {CONSUMERS} consumers, batches of {thousands(size)}, "
            "until the last is handled",
            "s",
            readings,
            baseline,
            "SKIP LOCKED table, 4 pollers, batches alike",
            [Goal(0.6, "at most")],
        )


SUBJECTS = [Subject("flood", "100 000 due at one instant, 4 consumers, until the last is handled", flood)]
