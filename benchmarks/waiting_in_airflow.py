"""Timeouts that wait in a real Airflow, half of them recalled: duewheel beside Airflow's own ways.

1 000 of them, with --long also 10 000 and 100 000. Airflow's ways are one DAG run with `run_after` for each
timeout, and one deferred task with a `DateTimeTrigger` for each. How late their tasks begin is measured by
`benchmarks.first_line`.

In favour of Airflow's ways their rows are written at once and not by a task each, their tasks are empty and
need no worker, there may be as many runs at a time as there are timeouts, and a triggerer takes all their
triggers, where it has `[triggerer] capacity` of 1 000 otherwise and lets the others stand.

The 1 000 take about ten minutes, most of them to let the timeouts wait until half is recalled; so do 100 000
by duewheel alone.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from math import inf
from typing import Any

from psycopg2.extensions import connection as Connection  # noqa: N812 - it is a class

from benchmarks.airflow_stand import airflow_stand, happens
from benchmarks.bench import Bench, Subject, seconds
from benchmarks.measure import Goal, Row, thousands
from benchmarks.program import main
from benchmarks.server import connect
from duewheel.cli.demo.airflow_api import AirflowApi, AirflowRefusedError
from duewheel.cli.demo.airflow_standalone import AirflowStandalone
from duewheel.store import Broker

TOPIC, GROUP = "timeouts", "canceller"
WAYS = {"run_after": "a run with `run_after` each", "date_time_trigger": "a deferred `DateTimeTrigger` each"}
#: Recalls that are timed; fewer if they are so slow that waiting timeouts would come due. The others of the
#: half are taken away together, in SQL.
TIMED = 50
#: All recalls end this long before the first due instant.
REST_SECONDS = 15
#: A timeout that has not fired this long after the last due instant counts as failed.
PATIENCE_SECONDS = 600.0

DAGS = f"""
from datetime import timedelta
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.providers.standard.sensors.date_time import DateTimeSensorAsync
from airflow.sdk import DAG, Asset, AssetWatcher, task
from duewheel.triggers.timing_wheel import TimingWheelTrigger

with DAG("run_after", schedule=None, max_active_runs=1_000_000):
    EmptyOperator(task_id="cancel")

with DAG("date_time_trigger", schedule=None, max_active_runs=1_000_000):
    DateTimeSensorAsync(task_id="wait", target_time="{{{{ run_after }}}}")

wheel = AssetWatcher(name="wheel", trigger=TimingWheelTrigger(topic="{TOPIC}", group="{GROUP}"))

with DAG("duewheel", schedule=[Asset("due", watchers=[wheel])], max_active_runs=1):

    @task.due_messages(topic="{TOPIC}", group="{GROUP}", max_messages=1_000, drain=True, linger="PT5S")
    def cancel(messages):
        pass

    cancel()
"""

DUEWHEEL_RECALL_REST = "select duewheel.recall_key(%s, key) from unnest(%s::text[]) key"
NONE_IS_LEFT = "select not exists (select from dag_run where dag_id = %s and state in ('queued', 'running'))"
RECALL_REST = "delete from dag_run where dag_id = %s and substr(run_id, 7)::int %% 2 = 0 and state = any (%s)"


@dataclass
class Measured:
    """The readings of one way at one size."""

    rows: float = inf
    memory_mb: float = inf
    recall_ms: float = inf
    rows_left: float = inf


@dataclass
class Stand:
    """The Airflow that is measured, with its database and the broker."""

    airflow: AirflowStandalone
    metadata: Connection
    broker: Broker

    def rows(self) -> int:
        """The rows in all of Airflow's tables except those about Airflow itself, such as heartbeats."""
        with self.metadata.cursor() as cursor:
            cursor.execute(
                "select relname from pg_class where relkind = 'r' and relnamespace = 'public'::regnamespace"
                " and relname not in ('job', 'log')"
            )
            counts = " + ".join(f'(select count(*) from "{name}")' for (name,) in cursor.fetchall())
            cursor.execute(f"select {counts}")
            ((count,),) = cursor.fetchall()
        return int(count)

    def memory_mb(self) -> float:
        """The private memory of triggerer and scheduler, all their processes together."""
        parts = self.airflow.parts()
        leaders = [parts[name] for name in ("triggerer", "scheduler")]
        family = [process for leader in leaders for process in (leader, *leader.children(recursive=True))]
        return float(sum(process.memory_full_info().uss for process in family)) / 2**20

    def settled_memory_mb(self) -> float:
        """The smallest of a few readings, since a task that runs just now does not count as waiting."""
        looks = []
        for _ in range(5):
            looks.append(self.memory_mb())
            # An Airflow task takes about this long.
            time.sleep(1)
        return min(looks)

    def ask(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Rows of Airflow's database."""
        with self.metadata.cursor() as cursor:
            cursor.execute(statement, parameters)
            return cursor.fetchall() if cursor.description else []


@contextmanager
def _stand(bench: Bench) -> Iterator[Stand]:
    with (
        # A triggerer that takes every trigger there is.
        airflow_stand(
            bench, TOPIC, lambda _: DAGS, ("duewheel", *WAYS), AIRFLOW__TRIGGERER__CAPACITY="1000000"
        ) as stand,
        closing(connect(stand.airflow.settings.database_dsn)) as metadata,
    ):
        yield Stand(stand.airflow, metadata, stand.broker)


def _duewheel(stand: Stand, count: int, lead: float, window: float) -> Measured:
    measured = Measured()
    memory, rows = stand.settled_memory_mb(), stand.rows()
    first_at = datetime.now(UTC) + timedelta(seconds=lead)
    broker = stand.broker
    orders = [
        {
            "body": {"order": number},
            "key": f"order-{number}",
            "deliver_at": first_at + timedelta(seconds=window * number / count),
        }
        for number in range(count)
    ]
    for first in range(0, count, 1_000):
        broker.send_many(TOPIC, orders[first : first + 1_000])
    keys = [f"order-{number}" for number in range(0, count, 2)]
    # By then, all memory that the sends need has grown, as a wheel looks each half second.
    time.sleep(2)
    measured.memory_mb = stand.settled_memory_mb() - memory
    measured.rows = (stand.rows() - rows) / count
    measured.recall_ms = _recall_ms(lambda key: broker.recall_key(TOPIC, key), keys, first_at)
    with broker.connection() as connection, connection.cursor() as cursor:
        for first in range(0, len(keys), 1_000):
            cursor.execute(DUEWHEEL_RECALL_REST, (TOPIC, keys[first : first + 1_000]))
    if datetime.now(UTC) > first_at:
        raise TimeoutError(f"duewheel: {count} messages were not sent and half recalled within {lead} s")
    _until_due(first_at, window)

    def is_over() -> bool:
        (topic,) = broker.stats().topics
        (group,) = topic.groups
        return topic.waiting == group.ready == group.inflight == 0

    happens(is_over, PATIENCE_SECONDS)
    measured.rows_left = (stand.rows() - rows) / count
    return measured


def _airflows(stand: Stand, way: str, count: int, lead: float, window: float) -> Measured:
    measured = Measured()
    memory, rows = stand.settled_memory_mb(), stand.rows()
    first_at = datetime.now(UTC) + timedelta(seconds=lead)
    made = (way, str(count), first_at.isoformat(), str(window), "0")
    subprocess.run(
        [sys.executable, "-m", "benchmarks.airflow_rows", *made],
        env=stand.airflow.settings.environment(),
        stdout=subprocess.DEVNULL,
        check=True,
    )
    if not happens(
        lambda: stand.ask("select not exists (select from trigger where triggerer_id is null)") == [(True,)],
        lead,
    ):
        raise TimeoutError(f"{way}: the triggerer did not take all {count} triggers within {lead} s")
    # The triggerer has them in its table by now, and makes their coroutines.
    time.sleep(2)
    measured.memory_mb = stand.settled_memory_mb() - memory
    measured.rows = (stand.rows() - rows) / count
    runs = [f"order-{number}" for number in range(0, count, 2)]
    measured.recall_ms = _recall_ms(lambda run: recall(stand.airflow.api, way, run), runs, first_at)
    stand.ask(RECALL_REST, way, ["queued", "running"])
    if datetime.now(UTC) > first_at:
        raise TimeoutError(f"{way}: {count} timeouts were not made and half recalled within {lead} s")
    _until_due(first_at, window)
    happens(lambda: stand.ask(NONE_IS_LEFT, way) == [(True,)], PATIENCE_SECONDS)
    measured.rows_left = (stand.rows() - rows) / count
    return measured


def _recall_ms(recall: Callable[[str], object], keys: list[str], first_at: datetime) -> float:
    """The median time of one recall, over as many as there is time for."""
    taken: list[float] = []
    for key in keys[:TIMED]:
        if taken and datetime.now(UTC) > first_at - timedelta(seconds=REST_SECONDS):
            break
        taken.append(seconds(partial(recall, key)) * 1000)
    return statistics.median(taken)


def recall(api: AirflowApi, way: str, run_id: str) -> bool:
    """Take a timeout back by Airflow's REST API; returns whether Airflow confirmed it.

    A run that waits for its `run_after` is deleted. One with a deferred task cannot be, so it is ended.
    """
    path = f"/api/v2/dags/{way}/dagRuns/{run_id}"
    try:
        if way == "run_after":
            api.call("DELETE", path)
        else:
            api.call("PATCH", path, {"state": "success"})
    except AirflowRefusedError:
        return False
    return True


def _until_due(first_at: datetime, window: float) -> None:
    last_at = first_at + timedelta(seconds=window)
    threading.Event().wait(max(0.0, (last_at - datetime.now(UTC)).total_seconds()))


def waiting(bench: Bench) -> Iterator[Row]:
    """Rows, memory, recalls and lateness of waiting timeouts."""
    for count in (1_000,) if bench.quick else (1_000, 10_000, 100_000):
        window = 30.0 if count == 1_000 else 60.0
        yield from measure(bench, count, lead=120 + count / 20, window=window)


def measure(bench: Bench, count: int, *, lead: float, window: float) -> Iterator[Row]:
    """The rows of one size; within `lead` seconds all timeouts are made and half of them recalled."""
    with _stand(bench) as stand:
        ours = _duewheel(stand, count, 20 + count / 500, window)
        theirs = {way: _airflows(stand, way, count, lead, window) for way in WAYS}
    yield from _rows(count, ours, theirs)


def _rows(count: int, ours: Measured, theirs: dict[str, Measured]) -> Iterator[Row]:
    what = f"{thousands(count)} waiting, half recalled"
    for way, other in theirs.items():
        for name, text, unit, value, its in (
            ("rows", "rows in Airflow's database for each that waits", "", ours.rows, other.rows),
            ("rows-left", "rows left there for each when all is over", "", ours.rows_left, other.rows_left),
            ("memory", "more memory of triggerer and scheduler", "MB", ours.memory_mb, other.memory_mb),
            ("recall", "one recall", "ms", ours.recall_ms, other.recall_ms),
        ):
            yield Row(f"{name}-{way}-{count}", f"{what}: {text}", unit, [value], [its], WAYS[way])


def alone(bench: Bench) -> Iterator[Row]:
    """The cost of 100 000 messages to Airflow."""
    count, window = 100_000, 60.0
    with _stand(bench) as stand:
        ours = _duewheel(stand, count, 20 + count / 300, window)
    small = [Goal(20, "at most", "ours")]
    figures: list[tuple[str, str, str, float, list[Goal]]] = [
        ("rows", "rows in Airflow's database for each that waits", "", ours.rows, []),
        ("memory", "more memory of triggerer and scheduler", "MB", ours.memory_mb, small),
        ("recall", "one recall", "ms", ours.recall_ms, []),
    ]
    for name, text, unit, value, goals in figures:
        what = f"{thousands(count)} messages waiting, half recalled: {text}"
        yield Row(f"{name}-alone-{count}", what, unit, [value], goals=goals)


SUBJECTS = [
    Subject("waiting", "timeouts that wait in Airflow, by duewheel and by Airflow's own ways", waiting),
    Subject("alone", "100 000 timeouts that wait in Airflow by duewheel alone", alone),
]

if __name__ == "__main__":
    main("waiting_in_airflow", __doc__, SUBJECTS)
