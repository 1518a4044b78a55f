"""Ten thousand topics with a group each, a hundred of them busy, on stock settings; a quarter without --long.

Lateness is that of the release: from a message's due instant to the tick that releases it, by the instants in
the ticks. So a hundred busy topics do not need a hundred consumers. Each busy topic has the same rate in both
databases, whether there are many topics or ten.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from math import inf

import psycopg2

from benchmarks import ours, workers
from benchmarks.bench import Bench, Subject, seconds
from benchmarks.measure import Goal, Row, percentile, thousands
from benchmarks.messages import BODY, now
from benchmarks.processes import crew
from benchmarks.program import main
from benchmarks.server import query
from duewheel.store import Broker

TOPICS = 10_000
BUSY = 100
FEW = 10
#: A second, on each busy topic.
RATE = 2
#: A longer wait counts as failed.
TURN_SECONDS = 60.0
STATS_SECONDS = 20.0
LATENESS = """
SELECT (extract(epoch FROM coalesce(
            (SELECT k.ticked_at FROM duewheel.tick k
              WHERE k.topic_id = m.topic_id AND k.hi >= m.deliver_at ORDER BY k.hi, k.tick_id LIMIT 1),
            clock_timestamp()) - m.deliver_at) * 1000)::float8
  FROM duewheel.message m
 WHERE m.deliver_at >= %s AND m.deliver_at < %s
"""


def _turned_after(dsn: str) -> float:
    """Seconds until the wheel that was just started has released something."""
    started = time.monotonic()
    while time.monotonic() < started + TURN_SECONDS:
        if query(dsn, "SELECT 1 FROM duewheel.tick WHERE by_wheel LIMIT 1"):
            return time.monotonic() - started
        # Polled, so the result is up to 10 ms too long.
        time.sleep(0.01)
    return inf


def _stats_seconds(dsn: str) -> float:
    limit = f"{dsn}?options=-c%20statement_timeout%3D{STATS_SECONDS * 1000:.0f}"
    with Broker(limit) as broker, broker.connection():
        try:
            return seconds(broker.stats)
        except psycopg2.errors.QueryCanceled:
            return inf


def _measure(bench: Bench, topics: int, busy: int, busy_seconds: int) -> tuple[float, float, float]:
    """Seconds to the first release, milliseconds of lateness at p99, and seconds of `stats`."""
    with bench.server.duewheel() as dsn:
        ours.make_topics(dsn, 1, topics, group="format('group-%s', n)")
        with Broker(dsn) as broker:
            broker.send("topic-1", BODY, delay=timedelta(0))
            with crew(1, workers.turn_wheel, dsn) as wheel:
                wheel.wait_until_ready()
                turned_after = _turned_after(dsn)
                start = now() + timedelta(seconds=3)
                until = start + timedelta(seconds=busy_seconds)
                for topic in range(1, busy + 1):
                    first = start + timedelta(seconds=topic / RATE / busy)
                    dues = [first + timedelta(seconds=n / RATE) for n in range(busy_seconds * RATE - 1)]
                    broker.send_many(f"topic-{topic}", [{"body": BODY, "deliver_at": due} for due in dues])
                threading.Event().wait((until - now()).total_seconds() + 1)
                lateness = [late for (late,) in query(dsn, LATENESS, start, until)]
        return turned_after, percentile(lateness, 99), _stats_seconds(dsn)


def many_topics(bench: Bench) -> Iterator[Row]:
    """A wheel's start, lateness and `stats` with thousands of topics, against 10."""
    busy_seconds = bench.size(30, 6)
    topics = bench.size(TOPICS, TOPICS // 4)
    sizes = {
        f"{FEW} topics, all busy": (FEW, FEW),
        f"{BUSY} topics, all busy": (BUSY, BUSY),
        "": (topics, BUSY),
    }
    few, all_busy, _ = sizes
    taken: dict[str, list[tuple[float, float, float]]] = {size: [] for size in sizes}
    for _ in range(1 if bench.quick else bench.pairs):
        for size, counts in sizes.items():
            taken[size].append(_measure(bench, *counts, busy_seconds))
    what = f"{thousands(topics)} topics with a group each, {BUSY} busy"
    late = f"{what}, {RATE} messages a second on each: due instant to release, p99"
    stats_goal = Goal(2.0 * topics / TOPICS, "at most", "ours")
    for name, text, unit, place, baseline, goals in (
        (
            "turn",
            f"{what}: from the wheel's start to its first release",
            "s",
            0,
            few,
            [Goal(2, "at most", "ours")],
        ),
        ("lateness", late, "ms", 1, few, [Goal(1.5, "at most")]),
        ("idle-lateness", "for comparison: the same", "ms", 1, all_busy, []),
        ("stats", f"{what}: `stats`", "s", 2, few, [stats_goal]),
    ):
        readings, its = ([each[place] for each in taken[size]] for size in ("", baseline))
        yield Row(f"topics-{name}", text, unit, readings, its, baseline, goals)


SUBJECTS = [Subject("many-topics", "10 000 topics with a group each, 100 of them busy", many_topics)]

if __name__ == "__main__":
    main("many_topics", __doc__, SUBJECTS)
