"""Ten thousand topics with a group each, a hundred of them busy, on stock settings; a quarter without --long.

Lateness is that of the release: from a message's due instant to the tick that releases it, by the instants in
the ticks. So a hundred busy topics do not need a hundred consumers. Each busy topic has the same rate in both
databases, whether there are many topics or ten.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta
from math import inf

import psycopg2

from benchmarks import ours, workers
from benchmarks.bench import Bench, Subject, seconds
from benchmarks.measure import Goal, Row, percentile, thousands
from benchmarks.processes import crew
from benchmarks.program import main
from benchmarks.server import connect
from duewheel.store import Broker

STATS_GOAL_SECONDS = 2.0
TOPICS = 10_000
BUSY = 100
FEW = 10
#: A second, on each busy topic.
RATE = 2
#: Topics made in one transaction: a subscription takes a lock, and locks are few.
CHUNK = 500
#: A query that takes longer than this counts as failed.
TURN_SECONDS = 60.0
STATS_SECONDS = 20.0
BODY = bytes(range(100))

MAKE = """
SELECT duewheel.create_topic(format('topic-%%s', n)),
       duewheel.subscribe(format('topic-%%s', n), format('group-%%s', n))
  FROM generate_series(%s, %s) n
"""

RELEASED = "SELECT count(*) FROM duewheel.tick WHERE by_wheel"

LATENESS = """
SELECT (extract(epoch FROM coalesce(
            (SELECT k.ticked_at FROM duewheel.tick k
              WHERE k.topic_id = m.topic_id AND k.hi >= m.deliver_at ORDER BY k.hi, k.tick_id LIMIT 1),
            clock_timestamp()) - m.deliver_at) * 1000)::float8
  FROM duewheel.message m
 WHERE m.deliver_at >= %s AND m.deliver_at < %s
"""


@dataclass
class Measured:
    """The readings of one database."""

    made_in_seconds: list[float] = field(default_factory=list)
    turned_after_seconds: list[float] = field(default_factory=list)
    p99_ms: list[float] = field(default_factory=list)
    stats_seconds: list[float] = field(default_factory=list)


def _turned_after(dsn: str) -> float:
    """Seconds until the wheel that was just started has released something."""
    started = time.monotonic()
    with closing(connect(dsn)) as connection, connection.cursor() as cursor:
        while time.monotonic() < started + TURN_SECONDS:
            cursor.execute(RELEASED)
            (ticks,) = cursor.fetchone() or (0,)
            if ticks:
                return time.monotonic() - started
            time.sleep(0.01)
    return inf


def _stats_seconds(dsn: str) -> float:
    limit = f"{dsn}?options=-c%20statement_timeout%3D{STATS_SECONDS * 1000:.0f}"
    with Broker(limit) as broker, broker.connection():
        try:
            return seconds(broker.stats)
        except psycopg2.errors.QueryCanceled:
            return inf


def _measure(bench: Bench, topics: int, busy: int, busy_seconds: int, measured: Measured) -> None:
    with bench.server.duewheel() as dsn, closing(connect(dsn)) as connection, connection.cursor() as cursor:
        started = time.monotonic()
        for first in range(1, topics + 1, CHUNK):
            cursor.execute(MAKE, (first, min(first + CHUNK - 1, topics)))
            if first == 1:
                # Autovacuum does this within a minute; before that, making topics is several times slower.
                cursor.execute("ANALYZE")
        measured.made_in_seconds.append(time.monotonic() - started)
        with Broker(dsn) as broker:
            broker.send("topic-1", BODY, delay=timedelta(0))
            with crew(1, workers.turn_wheel, dsn) as wheel:
                wheel.wait_until_ready()
                measured.turned_after_seconds.append(_turned_after(dsn))
                start = ours.now() + timedelta(seconds=3)
                until = start + timedelta(seconds=busy_seconds)
                for topic in range(1, busy + 1):
                    broker.send_many(
                        f"topic-{topic}",
                        [
                            {
                                "body": BODY,
                                "deliver_at": start + timedelta(seconds=number / RATE + topic / RATE / busy),
                            }
                            for number in range(busy_seconds * RATE - 1)
                        ],
                    )
                threading.Event().wait((until - ours.now()).total_seconds() + 1)
                cursor.execute(LATENESS, (start, until))
                measured.p99_ms.append(percentile([late for (late,) in cursor.fetchall()], 99))
        measured.stats_seconds.append(_stats_seconds(dsn))


def many_topics(bench: Bench) -> Iterator[Row]:
    """A wheel's start, lateness and `stats` with thousands of topics, against 10."""
    busy_seconds = bench.size(30, 6)
    topics = bench.size(TOPICS, TOPICS // 4)
    many, few, only_busy = Measured(), Measured(), Measured()
    for _ in range(1 if bench.quick else bench.pairs):
        _measure(bench, FEW, FEW, busy_seconds, few)
        _measure(bench, BUSY, BUSY, busy_seconds, only_busy)
        _measure(bench, topics, BUSY, busy_seconds, many)
    what = f"{thousands(topics)} topics with a group each, {BUSY} busy"
    baseline = f"{FEW} topics, all busy"
    yield Row(
        "topics-made",
        f"making {thousands(topics)} topics and groups by SQL",
        "s",
        many.made_in_seconds,
    )
    yield Row(
        "topics-turn",
        f"{what}: from the wheel's start to its first release",
        "s",
        many.turned_after_seconds,
        few.turned_after_seconds,
        baseline,
        [Goal(2, "at most", "ours")],
    )
    yield Row(
        "topics-lateness",
        f"{what}, {RATE} messages a second on each: due instant to release, p99",
        "ms",
        many.p99_ms,
        few.p99_ms,
        baseline,
        [Goal(1.5, "at most")],
    )
    yield Row(
        "topics-idle-lateness",
        "for comparison: the same",
        "ms",
        many.p99_ms,
        only_busy.p99_ms,
        f"{BUSY} topics, all busy",
    )
    yield Row(
        "topics-stats",
        f"{what}: `stats`",
        "s",
        many.stats_seconds,
        few.stats_seconds,
        baseline,
        [Goal(STATS_GOAL_SECONDS * topics / TOPICS, "at most", "ours")],
        notes=[f"a query of more than {STATS_SECONDS:.0f} s counts as failed"],
    )


SUBJECTS = [Subject("many-topics", "10 000 topics with a group each, 100 of them busy", many_topics)]

if __name__ == "__main__":
    main("many_topics", __doc__, SUBJECTS)
