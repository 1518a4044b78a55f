"""Upkeep after a rest of 30 days, while a program sends and receives; on stock settings.

1 000 topics were used for 33 days: each had 333 messages, one by one, each with its own tick, lease and
answer. That is 1 000 000 rows of logs. With --long, also 10 000 topics with 3 333 messages each, which is
100 000 000 rows. Upkeep was last done before the first of them. The broker makes the rows of one topic, on a
clock that is moved; the other topics get copies of its rows.

Then upkeep catches up at the pace of a wheel, for 80 s at most, or a quarter of an hour. After every two
seconds it rests for one. A program sends and receives single messages all the time: its rates during upkeep
are compared with its rates during the rests.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from benchmarks import ours
from benchmarks.bench import Bench, Subject
from benchmarks.measure import Goal, Row, task_of, thousands
from benchmarks.messages import BODY, now
from benchmarks.program import main
from benchmarks.server import connect, query, settle
from duewheel.store import Broker
from duewheel.store.wheel import upkeep

DAYS = 33
LOGS = ("tick", "lease", "lease_event")
#: Of upkeep at work, and of the rest after it.
TURN_SECONDS = 2.0
REST_SECONDS = 1.0
#: Between two rounds of a wheel.
HOUR_SECONDS = 3_600.0
#: If a round has left work, the next one begins sooner, and here sooner still.
SHORT_REST_SECONDS = 10.0
SECOND = timedelta(seconds=1)
#: Topics that get their rows in one transaction.
COPIES_AT_ONCE = 500

#: The state from the second round on, ten minutes after the first round that follows the rest.
BELIEVED = "UPDATE duewheel.broker SET noted_at = clock_timestamp(), believed_at = clock_timestamp()"
PROCESSOR = "most time of the processor for a step, whatever else the machine does"
COLUMNS = """
SELECT string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum),
       string_agg(CASE a.attname WHEN 'topic_id' THEN 't.' ELSE 'r.' END || quote_ident(a.attname), ', '
                  ORDER BY a.attnum)
  FROM pg_attribute a
 WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND NOT a.attisdropped
"""
FIRST_LEASES = """
DELETE FROM duewheel.lease WHERE topic_id <> (SELECT topic_id FROM duewheel.topic WHERE name = 'topic-1')
"""
COPY_TO_OTHERS = """
INSERT INTO duewheel.{table} ({columns}) OVERRIDING SYSTEM VALUE
SELECT {values}
  FROM duewheel.topic t CROSS JOIN duewheel.{table} r
 WHERE r.topic_id = (SELECT o.topic_id FROM duewheel.topic o WHERE o.name = 'topic-1')
   AND t.name IN (SELECT format('topic-%%s', n) FROM generate_series(%s, %s) n)
"""


@dataclass
class Program:
    """Sends and receives single messages on a topic until it is stopped."""

    dsn: str
    received: int = 0
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Send and receive, and count."""
        with Broker(self.dsn) as broker:
            consumer = broker.consumer("busy", "busy")
            while not self.stop.is_set():
                broker.send("busy", BODY, delay=timedelta(0))
                if batch := consumer.receive(1):
                    consumer.ack(batch)
                    self.received += 1


@dataclass
class Turns:
    """Steps of upkeep in a session of the server, with rests; and the program's work during both."""

    program: Program
    session_pid: int
    working: list[float] = field(default_factory=list)
    resting: list[float] = field(default_factory=list)
    #: For each step its seconds, the seconds of the server's processor, and its statement.
    steps: list[tuple[float, float, str]] = field(default_factory=list)
    #: Of upkeep with its pauses, without rests.
    upkeep_seconds: float = 0.0
    began_at: float = 0.0
    done_before: int = 0

    def catch_up(self, work: Any, most_seconds: float) -> None:
        """Run rounds at the pace of a wheel, until nothing is left to do or the time is over."""
        pace = upkeep.Pace(HOUR_SECONDS)
        pause_seconds = 0.0
        self._begin()
        while pause_seconds < HOUR_SECONDS and self.upkeep_seconds < most_seconds:
            done, pause_seconds = pace.step(lambda state, rows: self._step(work, state, rows))
            if done is None:
                time.sleep(pause_seconds)
            if done is not None or self._seconds() >= TURN_SECONDS:
                self._rest(REST_SECONDS if done is None else min(pause_seconds, SHORT_REST_SECONDS))

    def _begin(self) -> None:
        self.began_at, self.done_before = time.perf_counter(), self.program.received

    def _seconds(self) -> float:
        return time.perf_counter() - self.began_at

    def _rate(self) -> float:
        """The program's messages per second since the turn began."""
        return (self.program.received - self.done_before) / self._seconds()

    def _step(self, work: Any, state: str | None, rows: int) -> upkeep.State:
        began, used = time.perf_counter(), processor_seconds(self.session_pid)
        after: upkeep.State = work(state, rows)
        used = processor_seconds(self.session_pid) - used
        self.steps.append((time.perf_counter() - began, used, task_of(state, rows)))
        return after

    def _rest(self, seconds: float) -> None:
        self.upkeep_seconds += self._seconds()
        # A turn in which a round ended may have been too short to count in.
        if is_whole := self._seconds() >= TURN_SECONDS:
            self.working.append(self._rate())
        self._begin()
        time.sleep(seconds)
        if is_whole:
            self.resting.append(self._rate())
        self._begin()


def processor_seconds(pid: int) -> float:
    """The time that a process has had a processor for."""
    return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[0]) / 1e9


def live(dsn: str, topics: int, messages: int) -> None:
    """33 days of all topics, with so many messages on each."""
    at = now() - timedelta(days=DAYS)
    with Broker(dsn, clock=lambda: at) as broker:
        broker.maintain()
        broker.create_topic("topic-1", queues=1)
        consumer = broker.consumer("topic-1", "workers")
        for _ in range(messages):
            broker.send("topic-1", BODY, delay=SECOND)
            at += SECOND
            broker.tick("topic-1")
            consumer.ack(consumer.receive(1))
            at += timedelta(days=DAYS) / messages - SECOND
    ours.make_topics(dsn, 2, topics, options=", queues => 1")
    # Of the time when the copies were made.
    query(dsn, FIRST_LEASES)
    for table in ("message", *LOGS):
        ((columns, values),) = query(dsn, COLUMNS, f"duewheel.{table}")
        copying = COPY_TO_OTHERS.format(table=table, columns=columns, values=values)
        for first in range(2, topics + 1, COPIES_AT_ONCE):
            query(dsn, copying, first, min(first + COPIES_AT_ONCE - 1, topics))
    settle(dsn)


def rows_of_logs(dsn: str) -> int:
    """The rows of the logs."""
    counts = " + ".join(f"(SELECT count(*) FROM duewheel.{table})" for table in LOGS)
    ((count,),) = query(dsn, f"SELECT {counts}")
    return int(count)


def catching_up(
    bench: Bench, topics: int, messages: int, most_seconds: float, size: str = ""
) -> Iterator[Row]:
    """Upkeep after the rest, for at most so long without its rests; `size` ends the names of the rows."""
    with bench.server.duewheel() as dsn:
        live(dsn, topics, messages)
        before = rows_of_logs(dsn)
        query(dsn, BELIEVED)
        with Broker(dsn) as broker:
            broker.create_topic("busy", queues=1)
        program = Program(dsn)
        thread = threading.Thread(target=program.run)
        thread.start()
        time.sleep(TURN_SECONDS)
        with closing(connect(dsn)) as connection, connection.cursor() as cursor:
            turns = Turns(program, connection.get_backend_pid())

            def work(state: str | None, rows: int) -> upkeep.State:
                cursor.execute(upkeep.STEP, (state, rows, None))
                ((after,),) = cursor.fetchall()
                return dict(after)

            turns.catch_up(work, most_seconds)
        program.stop.set()
        thread.join()
        after = rows_of_logs(dsn)
    rows = f"of {thousands(before)} rows of logs"
    step_seconds = sum(taken for taken, _, _ in turns.steps)
    longest, _, statement = max(turns.steps)
    most_used, its_statement = max((used, told) for _, used, told in turns.steps)
    yield Row(
        f"rate{size}",
        f"sends and receives of single messages beside upkeep that catches up, {rows}",
        "/s",
        turns.working,
        turns.resting,
        "upkeep rests",
        [Goal(0.9, "at least")],
        [f"{thousands(topics)} topics, {thousands(before)} rows of logs before, {thousands(after)} after"],
    )
    for name, what, seconds, note in (
        ("longest", "longest step of upkeep", longest, statement),
        ("processor", PROCESSOR, most_used, its_statement),
    ):
        goal = Goal(250, "at most", "ours")
        yield Row(f"{name}{size}", f"{what}, {rows}", "ms", [seconds * 1000], goals=[goal], notes=[note])
    for name, what, seconds in (
        ("forgotten", "rows of logs that upkeep forgets at the pace of a wheel", turns.upkeep_seconds),
        ("maintained", "the same without pauses, as `Broker.maintain`", step_seconds),
    ):
        yield Row(f"{name}{size}", f"{what}, {rows}", "/s", [(before - after) / seconds])


def million(bench: Bench) -> Iterator[Row]:
    """1 000 topics."""
    yield from catching_up(bench, 1_000, 333, 80.0)


def hundred_million(bench: Bench) -> Iterator[Row]:
    """10 000 topics, with --long."""
    if not bench.quick:
        yield from catching_up(bench, 10_000, 3_333, 900.0, "-of-100-million")


SUBJECTS = [
    Subject("million", "upkeep after a rest of 30 days, 1 000 topics", million),
    Subject("hundred-million", "the same with 10 000 topics and --long", hundred_million),
]

if __name__ == "__main__":
    main("catching_up", __doc__, SUBJECTS)
