"""The everyday cost for an operator: a wheel with nothing to do, and the steps of an upgrade; stock settings.

The wheel looks after 1 000 topics with a group each, and nothing is sent. It has a separate process, so its
processor time is that of the process, and the server's is that of all sessions of the wheel: no other program
uses the server.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing

import psutil

from benchmarks import ours, workers
from benchmarks.bench import Bench, Subject, seconds
from benchmarks.measure import Row, thousands
from benchmarks.processes import crew
from benchmarks.program import main
from benchmarks.server import connect, query, settle
from duewheel.store.database.migration import upgrade

TOPICS = 1_000
#: Until the wheel has scanned all topics, and done its first round of upkeep.
WARM_SECONDS = 10.0
IDLE_SECONDS = 60.0
COUNTS = """
SELECT d.xact_commit, pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::float8
  FROM pg_stat_database d WHERE d.datname = current_database()
"""
OTHER_FUNCTIONS = "UPDATE duewheel.broker SET functions_checksum = 'of another version'"


def idle(bench: Bench) -> Iterator[Row]:
    """A wheel with nothing to do."""
    with bench.server.duewheel() as dsn:
        ours.make_topics(dsn, 1, TOPICS)
        settle(dsn)
        with (
            crew(1, workers.turn_wheel, dsn) as wheel,
            closing(connect(dsn)) as connection,
            connection.cursor() as cursor,
        ):
            wheel.wait_until_ready()
            time.sleep(WARM_SECONDS)
            (process,) = wheel.workers

            def read() -> tuple[float, ...]:
                cursor.execute(COUNTS)
                (counts,) = cursor.fetchall()
                return (sum(psutil.Process(process.pid).cpu_times()[:2]), bench.server.cpu_seconds(), *counts)

            before = read()
            time.sleep(IDLE_SECONDS)
            own, server, statements, wal = (
                (there - here) / IDLE_SECONDS for here, there in zip(before, read(), strict=True)
            )
    about = f"a wheel with nothing to do, {thousands(TOPICS)} topics"
    yield Row("idle-wheel", f"{about}: its time of one processor", "%", [100 * own])
    yield Row("idle-server", f"{about}: the server's time of one processor", "%", [100 * server])
    yield Row("idle-questions", f"{about}: transactions", "/s", [statements])
    yield Row("idle-wal", f"{about}: WAL", "KB/s", [wal / 1000])


def upgrading(bench: Bench) -> Iterator[Row]:
    """The steps of an upgrade of the schema."""
    taken: dict[str, list[float]] = {"first": [], "nothing": [], "functions": []}
    for _ in range(bench.pairs):
        with bench.server.empty() as dsn:
            taken["first"].append(seconds(lambda: upgrade(dsn)))
            taken["nothing"].append(seconds(lambda: upgrade(dsn)))
            query(dsn, OTHER_FUNCTIONS)
            taken["functions"].append(seconds(lambda: upgrade(dsn)))
    yield Row("upgrade-first", "the first upgrade", "s", taken["first"])
    yield Row("upgrade-nothing", "an upgrade where nothing is new", "s", taken["nothing"])
    yield Row("upgrade-functions", "an upgrade with new functions and rights", "s", taken["functions"])


SUBJECTS = [
    Subject("idle", "a wheel with nothing to do", idle),
    Subject("upgrade", "the steps of an upgrade", upgrading),
]

if __name__ == "__main__":
    main("operating", __doc__, SUBJECTS)
