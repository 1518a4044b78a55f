"""From the due instant to the start of the handler: an idle consumer in one process, the wheel in another.

Messages are sent ahead of time and come due at random instants at a steady mean rate. The consumer sits in
its long poll; neither it nor the wheel may poll busily, so the CPU time that the idle consumer takes is
noted. Beside it, for comparison, a poller of the status table that looks every 5 ms.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from functools import partial

from benchmarks import ours, status_table, workers
from benchmarks.bench import Bench, Subject
from benchmarks.measure import Goal, Row, interleave, percentile, thousands
from benchmarks.messages import Order, chunks, orders
from benchmarks.processes import crew
from benchmarks.server import connect
from duewheel.store import Broker

GRANULARITY = timedelta(milliseconds=5)
SIZE = 100
#: Between the last send and the first due instant; the consumer is idle for this long.
LEAD = timedelta(seconds=2)


def _coming(rate: int, seconds: int, seed: int) -> list[Order]:
    """Messages that come due at random over `seconds`, soon."""
    return orders(rate * seconds, start=ours.now() + LEAD, within=timedelta(seconds=seconds), seed=seed)


def _ours(bench: Bench, rate: int, seconds: int, seen: list[workers.Work], pair: int) -> float:
    count = rate * seconds
    with bench.server.duewheel() as dsn:
        ours.create_topic(dsn, granularity=GRANULARITY)
        with (
            crew(1, workers.turn_wheel, dsn) as wheel,
            crew(1, workers.consume_punctually, dsn, SIZE, count) as consumer,
            Broker(dsn) as broker,
        ):
            wheel.wait_until_ready()
            consumer.go()
            for chunk in chunks(_coming(rate, seconds, pair), 1_000):
                ours.send(broker, chunk)
            (work,) = consumer.collect(timeout_seconds=seconds + 60)
    seen.append(work)
    return percentile(work.lateness, 99) * 1000


def _status(bench: Bench, rate: int, seconds: int, seen: list[workers.Work], pair: int) -> float:
    count = rate * seconds
    with bench.server.empty() as dsn, closing(connect(dsn)) as connection:
        status_table.create(connection)
        with crew(1, workers.poll_punctually, dsn, SIZE, count) as consumer:
            consumer.go()
            for chunk in chunks(_coming(rate, seconds, pair), 1_000):
                status_table.copy(connection, chunk, born_at=ours.now())
            (work,) = consumer.collect(timeout_seconds=seconds + 60)
    seen.append(work)
    return percentile(work.lateness, 99) * 1000


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
    for rate in (200, 1_000):
        ours_seen: list[workers.Work] = []
        status_seen: list[workers.Work] = []
        readings, baseline = interleave(
            partial(_ours, bench, rate, seconds, ours_seen),
            partial(_status, bench, rate, seconds, status_seen),
            pairs=bench.pairs,
        )
        yield Row(
            f"latency-{rate}",
            f"due instant to handler start, p99, {thousands(rate)}/s",
            "ms",
            readings,
            baseline,
            "SKIP LOCKED table looked at every 5 ms",
            [Goal(12, "at most", "ours")],
            notes=[_note("ours", ours_seen[1:]), _note("SKIP LOCKED", status_seen[1:])],
        )


SUBJECTS = [Subject("latency", "due instant to handler start at 200/s and 1 000/s", latency)]
