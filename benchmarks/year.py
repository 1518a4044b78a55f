"""A year of a broker, by a clock that is stopped until it is moved, on stock settings.

There are 1 000 topics with --long, and 100 without. Every day 40 of them, or 10, send 50 messages each: half
of them daily, the rest in turn; all topics receive their due messages. A message waits from a minute to 30
days, 2 of 100 fail once, and 1 of 100 is recalled. Two groups of daily topics read nothing all year. From the
seventh month on `abandoned_after` is 30 days. The server restarts once a week. Upkeep is done once a day.

A day takes about a second or a few, so autovacuum runs once a second. On a real server it runs 1 440 times a
day.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

from benchmarks.bench import Bench, Subject
from benchmarks.measure import Row, task_of, thousands
from benchmarks.messages import BODY
from benchmarks.program import main
from benchmarks.server import STOCK_SETTINGS, connect, query
from duewheel.store import Broker
from duewheel.store.wheel import upkeep

SETTINGS = {**STOCK_SETTINGS, "autovacuum_naptime": "1s"}
MONTHS = 12
DAYS_OF_A_MONTH = 30
#: From the start of this month on, abandoned groups lose messages after 30 days.
ABANDONED_AFTER_MONTH = 7
ABANDONED = (0, 1)
DAY = timedelta(days=1)
MINUTE = timedelta(minutes=1)

#: The tables of a line; all others are "the rest".
KINDS = {
    "messages": ("message", "far_message"),
    "ticks": ("tick", "straggler", "held_back"),
    "leases": ("lease", "lease_event", "lease_extension", "lease_answer"),
    "recalls": ("recall", "bulk_recall", "key_mark"),
}

SIZES = """
SELECT CASE WHEN c.relname ~ '^message_[0-9]+' THEN 'message' ELSE c.relname END,
       sum(pg_total_relation_size(c.oid))::bigint, sum(pg_stat_get_dead_tuples(c.oid))::bigint
  FROM pg_class c
 WHERE c.relnamespace = 'duewheel'::regnamespace AND c.relkind = 'r'
 GROUP BY 1
"""
WAL = "SELECT pg_current_wal_insert_lsn() - '0/0'"


class Year:
    """The database of the year, and its users."""

    def __init__(self, dsn: str, bench: Bench) -> None:
        self.topics = bench.size(1_000, 100)
        self.daily = bench.size(20, 5)
        self.dsn = dsn
        self.server = bench.server
        self.now = datetime.now(UTC)
        self.chance = random.Random(1)
        self.sent = 0
        #: The seconds of the month's longest step of upkeep, and its statement.
        self.longest = 0.0, ""
        #: When messages of a topic are due that were not received yet, in order.
        self.due_at: dict[int, list[datetime]] = {}
        self._connect()
        for number in range(self.topics):
            self.broker.create_topic(f"topic-{number}", max_delay=31 * DAY, queues=1)
            self.consumers[number] = self.broker.consumer(f"topic-{number}", "workers")
        for number in ABANDONED:
            self.broker.consumer(f"topic-{number}", "abandoned")

    def _connect(self) -> None:
        self.broker = Broker(self.dsn, clock=lambda: self.now)
        self.consumers: dict[int, Any] = {}

    def restart(self) -> None:
        """Stop the server and start it again; every program connects again."""
        self.broker.close()
        self.server.restart()
        self._connect()

    def day(self, number: int) -> None:
        """Let topics send, recall a part, and receive the due messages of every topic; then do upkeep."""
        first = self.daily + number * self.daily % (self.topics - self.daily)
        active = (*range(self.daily), *range(first, min(first + self.daily, self.topics)))
        for topic in active:
            self.send(topic)
        self.now += DAY
        for topic in range(self.topics):
            if any(due_at < self.now for due_at in self.due_at.get(topic, [])[:1]):
                self.receive(topic)
        self.maintain()

    def send(self, topic: int) -> None:
        """Send 50 messages, of which every second waits for less than a day; one in 100 is recalled."""
        name = f"topic-{topic}"
        delays = [MINUTE + self.chance.random() * (DAY if number % 2 else 30 * DAY) for number in range(50)]
        self.broker.send_many(
            name,
            [
                {"body": BODY, "delay": delay, "key": f"order-{n}"}
                for n, delay in enumerate(delays, self.sent)
            ],
        )
        self.due_at[topic] = sorted([*self.due_at.get(topic, []), *(self.now + delay for delay in delays)])
        if self.chance.random() < 0.5:
            self.broker.recall_key(name, f"order-{self.sent}")
        self.sent += 50

    def receive(self, topic: int) -> None:
        """Take due messages; on an average two in 100 fail, and are delivered again the next day."""
        consumer = self.consumers.get(topic) or self.broker.consumer(f"topic-{topic}", "workers")
        self.consumers[topic] = consumer
        self.broker.tick(f"topic-{topic}")
        self.due_at[topic] = [due_at for due_at in self.due_at[topic] if due_at >= self.now]
        while batch := consumer.receive(1_000):
            failed = [message for message in batch if message.attempt == 1 and self.chance.random() < 0.02]
            if failed:
                consumer.nack(failed)
                self.due_at[topic].insert(0, self.now + MINUTE)
            consumer.ack([message for message in batch if message not in failed])

    def maintain(self) -> None:
        """Do one upkeep; keeps the step that took longest."""
        with closing(connect(self.dsn)) as connection, connection.cursor() as cursor:

            def call(state: str | None, rows: int) -> upkeep.State:
                began = time.perf_counter()
                cursor.execute(upkeep.STEP, (state, rows, self.now))
                ((after,),) = cursor.fetchall()
                self.longest = max(self.longest, (time.perf_counter() - began, task_of(state, rows)))
                return dict(after)

            upkeep.in_rounds(call)

    def sizes(self) -> tuple[dict[str, int], int]:
        """Bytes by kind of table, and the dead rows of all."""
        kind_of = {table: kind for kind, tables in KINDS.items() for table in tables}
        sizes = dict.fromkeys((*KINDS, "rest"), 0)
        dead = 0
        for table, size, rows in query(self.dsn, SIZES):
            sizes[kind_of.get(table, "rest")] += size
            dead += rows
        return sizes, dead


def year(bench: Bench) -> Iterator[Row]:
    """The state at the end of each month."""
    with bench.server.duewheel() as dsn:
        users = Year(dsn, bench)
        ((wal,),) = query(dsn, WAL)
        for month in range(1, MONTHS + 1):
            if month == ABANDONED_AFTER_MONTH:
                users.broker.update_settings(abandoned_after=30 * DAY)
            for day in range(DAYS_OF_A_MONTH):
                number = (month - 1) * DAYS_OF_A_MONTH + day
                users.day(number)
                if number % 7 == 6:
                    users.restart()
            sizes, dead = users.sizes()
            ((live,),) = query(dsn, "SELECT count(*) FROM duewheel.any_message")
            for kind, size in sizes.items():
                yield Row(f"{kind}-{month}", f"{kind} at the end of month {month}", "MB", [size / 1e6])
            yield Row(f"dead-{month}", f"dead rows at the end of month {month}", "", [dead])
            yield Row(f"live-{month}", f"messages there at the end of month {month}", "", [live])
            longest, statement = users.longest
            longest_ms = [longest * 1000]
            yield Row(
                f"step-{month}",
                f"longest step of upkeep in month {month}",
                "ms",
                longest_ms,
                notes=[statement],
            )
            users.longest = 0.0, ""
        ((after,),) = query(dsn, WAL)
        yield Row(
            "wal",
            "WAL per message, from its send to its ack, upkeep included",
            "bytes",
            [float(after - wal) / users.sent],
            notes=[f"{thousands(users.sent)} messages"],
        )
        users.broker.close()


SUBJECTS = [Subject("year", "the tables of a broker, month by month", year)]

if __name__ == "__main__":
    main("year", __doc__, SUBJECTS, SETTINGS)
