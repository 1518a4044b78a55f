"""From the due instant to the start of the handler: messages at a steady rate, and many at one instant.

Messages are sent ahead of time. Consumers wait in their long poll, and the wheel is in a separate process;
neither may poll busily, so the CPU time of an idle consumer is noted. They are compared with pollers of a
table that look every 5 ms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

from benchmarks import ours, workers
from benchmarks.bench import Bench, Subject
from benchmarks.measure import Goal, Row, interleave, percentile, thousands
from benchmarks.messages import HOUR, Order, chunks, now, orders
from benchmarks.processes import crew
from benchmarks.server import connect, settle
from benchmarks.stand import CONSUMERS, TIMEOUT_SECONDS, Stand, last_at
from benchmarks.tables import LEASED
from duewheel.store import Broker

GRANULARITY = timedelta(milliseconds=5)
SIZE = 100
#: Between the start of the sends and the first due instant, so that the consumer is idle for a while.
LEAD = timedelta(seconds=4)
#: Before a flood: long enough to load, to settle and to start the processes.
FLOOD_LEAD = timedelta(seconds=15)


def _in_time(due_at: datetime) -> None:
    if now() > due_at:
        raise RuntimeError("loading and starting took so long that the first instant has passed")


def ours_late(
    stand: Stand, orders_from: Callable[[datetime], list[Order]], granularity: timedelta | None
) -> workers.Work:
    """Our one consumer's work; `orders_from` makes the messages, from their first instant."""
    with stand.bench.server.duewheel() as dsn:
        ours.create_topic(dsn, granularity=granularity)
        coming = orders_from(now() + LEAD)
        with (
            crew(1, workers.turn_wheel, dsn) as wheel,
            crew(1, workers.consume, dsn, stand.table, SIZE, len(coming), True) as consumer,
            Broker(dsn) as broker,
        ):
            wheel.wait_until_ready()
            consumer.go()
            for chunk in chunks(coming, 1_000):
                ours.send(broker, chunk)
            return _late(coming, consumer.collect)


def _table_late(stand: Stand, orders_from: Callable[[datetime], list[Order]]) -> workers.Work:
    with stand.empty_table() as dsn, closing(connect(dsn)) as connection:
        coming = orders_from(now() + LEAD)
        with crew(1, workers.poll, dsn, stand.table, SIZE, len(coming), True) as poller:
            poller.go()
            for chunk in chunks(coming, 1_000):
                stand.table.insert_many(connection, chunk)
            return _late(coming, poller.collect)


def _late(coming: list[Order], collect: Callable[..., list[workers.Work]]) -> workers.Work:
    _in_time(min(order.due_at for order in coming))
    (work,) = collect(timeout_seconds=TIMEOUT_SECONDS)
    return work


def _note(side: str, seen: list[workers.Work]) -> str:
    lateness = [late * 1000 for work in seen for late in work.lateness]
    p50, p90, largest = (percentile(lateness, percent) for percent in (50, 90, 100))
    idle = percentile([work.idle_cpu_share for work in seen], 50)
    return (
        f"{side}: p50 {p50:.1f} ms, p90 {p90:.1f} ms, "
        f"largest {largest:.1f} ms, smallest {min(lateness):.1f} ms; "
        f"the idle consumer used {idle:.1%} of one processor"
    )


def latency(bench: Bench) -> Iterator[Row]:
    """p99 of due instant to handler start at 200 and at 1 000 a second."""
    seconds = bench.size(10, 6)
    stand = Stand(bench, LEASED)
    for rate in (200, 1_000):
        ours_seen: list[workers.Work] = []
        table_seen: list[workers.Work] = []

        def p99(
            side: Callable[..., workers.Work], seen: list[workers.Work], pair: int, rate: int = rate
        ) -> float:
            within = timedelta(seconds=seconds)
            seen.append(side(lambda start: orders(rate * seconds, start=start, within=within, seed=pair)))
            return percentile(seen[-1].lateness, 99) * 1000

        readings, baseline = interleave(
            partial(p99, partial(ours_late, stand, granularity=GRANULARITY), ours_seen),
            partial(p99, partial(_table_late, stand), table_seen),
            pairs=bench.pairs,
        )
        yield Row(
            f"latency-{rate}",
            f"due instant to handler start, p99, {thousands(rate)}/s",
            "ms",
            readings,
            baseline,
            f"{LEASED.name} looked at every 5 ms",
            [Goal(12, "at most", "ours")],
            notes=[_note("ours", ours_seen[1:]), _note("SKIP LOCKED", table_seen[1:])],
        )


def _last_handled(
    stand: Stand,
    dsn: str,
    count: int,
    pair: int,
    worker: Callable[..., None],
    load: Callable[[list[Order]], object],
) -> float:
    """Seconds from the instant of all messages until the last is handled, in batches of 1 000."""
    due_at = now().replace(microsecond=0) + FLOOD_LEAD
    together = orders(count, start=due_at, within=HOUR, seed=pair)
    with crew(CONSUMERS, worker, dsn, stand.table, 1_000, count) as consumers:
        for chunk in chunks([replace(order, due_at=due_at) for order in together], 10_000):
            load(chunk)
        settle(dsn)
        consumers.go()
        _in_time(due_at)
        return last_at(count, consumers.collect(timeout_seconds=TIMEOUT_SECONDS)) - due_at.timestamp()


def _ours_flood(stand: Stand, count: int, pair: int) -> float:
    with stand.bench.server.duewheel() as dsn:
        ours.create_topic(dsn)
        with crew(1, workers.turn_wheel, dsn) as wheel, Broker(dsn) as broker:
            wheel.wait_until_ready()
            return _last_handled(stand, dsn, count, pair, workers.consume, partial(ours.send, broker))


def _table_flood(stand: Stand, count: int, pair: int) -> float:
    with stand.empty_table() as dsn, closing(connect(dsn)) as connection:
        load = partial(stand.table.insert_many, connection)
        return _last_handled(stand, dsn, count, pair, workers.poll, load)


def flood(bench: Bench) -> Iterator[Row]:
    """Until the last of 100 000 is handled, in batches of 1 000."""
    count = bench.size(100_000, 20_000)
    sides = (partial(side, Stand(bench, LEASED), count) for side in (_ours_flood, _table_flood))
    yield Row(
        "flood-1000",
        f"{thousands(count)} due at one instant, {CONSUMERS} consumers, batches of 1 000, "
        "until the last is handled",
        "s",
        *interleave(*sides, pairs=bench.pairs),
        f"{LEASED.name}, {CONSUMERS} pollers, batches alike",
        [Goal(0.6, "at most")],
    )


SUBJECTS = [
    Subject("latency", "due instant to handler start at 200/s and 1 000/s", latency),
    Subject("flood", "100 000 due at one instant, 4 consumers, until the last is handled", flood),
]
