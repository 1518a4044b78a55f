"""Timeouts that wait in a real Airflow, half of them recalled: duewheel and Airflow's own ways.

1 000 of them, and 100 000 of duewheel alone. Airflow's ways are one DAG run with `run_after` for each
timeout, and one deferred task with a `DateTimeTrigger` for each. How late their tasks begin is measured by
`benchmarks.first_line`.

In favour of Airflow's ways their rows are written at once and not by a task each, their tasks are empty and
need no worker, and there may be as many runs at a time as there are timeouts. A triggerer takes all their
triggers; by default `[triggerer] capacity` is 1 000, and it leaves the rest waiting.

The 1 000 take about ten minutes, most of them to let the timeouts wait until half is recalled, and so do the
100 000.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from benchmarks.airflow_stand import GROUP, TOPIC, WAYS, AirflowStand, airflow_stand, wait
from benchmarks.bench import Bench, Subject, seconds
from benchmarks.measure import Goal, Row, thousands
from benchmarks.program import main
from benchmarks.server import query

#: Recalls that are timed; fewer if they are so slow that waiting timeouts would be due. The rest of the half
#: are removed together, in SQL.
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

#: Tables about Airflow itself, such as heartbeats, do not count.
TABLES = """
select relname from pg_class
 where relkind = 'r' and relnamespace = 'public'::regnamespace and relname not in ('job', 'log')
"""
DUEWHEEL_RECALL_REST = "select (duewheel.recall_key(%s, key)).outcome from unnest(%s::text[]) key"
ALL_TAKEN = "select not exists (select from trigger where triggerer_id is null)"
NONE_IS_LEFT = "select not exists (select from dag_run where dag_id = %s and state in ('queued', 'running'))"
RECALL_REST = "delete from dag_run where dag_id = %s and substr(run_id, 7)::int %% 2 = 0 and state = any (%s)"


#: The readings of a way, by these names.
Readings = dict[str, float]
ROWS = {
    "rows": ("rows in Airflow's database for each that waits", ""),
    "rows-left": ("rows left there for each when all is over", ""),
    "memory": ("more memory of triggerer and scheduler", "MB"),
    "recall": ("one recall", "ms"),
}


@dataclass
class Waiting:
    """So many timeouts in an Airflow, the first due after `lead` seconds, all within `window` seconds."""

    stand: AirflowStand
    count: int
    lead: float
    window: float

    def ask(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Rows of Airflow's database."""
        return query(self.stand.airflow.settings.database_dsn, statement, *parameters)

    def rows(self) -> int:
        """The rows in Airflow's tables."""
        counts = " + ".join(f'(select count(*) from "{name}")' for (name,) in self.ask(TABLES))
        ((count,),) = self.ask(f"select {counts}")
        return int(count)

    def memory_mb(self) -> float:
        """The private memory of triggerer and scheduler, all their processes together.

        The smallest of a few readings, because a task that runs just now does not count as waiting.
        """
        looks = []
        for _ in range(5):
            parts = self.stand.airflow.parts()
            leaders = [parts[name] for name in ("triggerer", "scheduler")]
            family = [process for leader in leaders for process in (leader, *leader.children(recursive=True))]
            looks.append(float(sum(process.memory_full_info().uss for process in family)) / 2**20)
            # An Airflow task takes about this long.
            time.sleep(1)
        return min(looks)

    def measure(
        self,
        make: Callable[[datetime], object],
        recall: Callable[[str], object],
        recall_rest: Callable[[], object],
        is_over: Callable[[], bool],
    ) -> Readings:
        """Make the timeouts, recall half of them, and wait until all have ended."""
        memory_before, rows_before = self.memory_mb(), self.rows()
        first_at = datetime.now(UTC) + timedelta(seconds=self.lead)
        make(first_at)
        # By then, all memory that they need has grown: a wheel polls each half second, and a triggerer makes
        # the coroutines of the triggers that it has taken.
        time.sleep(2)
        memory, rows = self.memory_mb() - memory_before, (self.rows() - rows_before) / self.count
        taken: list[float] = []
        for number in range(0, self.count, 2)[:TIMED]:
            if taken and datetime.now(UTC) > first_at - timedelta(seconds=REST_SECONDS):
                break
            taken.append(seconds(partial(recall, f"order-{number}")) * 1000)
        recall_rest()
        left_seconds = (first_at - datetime.now(UTC)).total_seconds()
        if left_seconds < 0:
            raise TimeoutError(f"{self.count} timeouts were not made and half recalled within {self.lead} s")
        # No timeout is due before that, and polling would reduce the measured value.
        time.sleep(left_seconds + self.window)
        wait(is_over, "the end of all timeouts", PATIENCE_SECONDS)
        rows_left = (self.rows() - rows_before) / self.count
        return {"rows": rows, "rows-left": rows_left, "memory": memory, "recall": statistics.median(taken)}

    def duewheel(self) -> Readings:
        """As messages."""
        broker = self.stand.broker

        def make(first_at: datetime) -> None:
            apart = timedelta(seconds=self.window) / self.count
            orders = [
                {"body": {"order": n}, "key": f"order-{n}", "deliver_at": first_at + n * apart}
                for n in range(self.count)
            ]
            for first in range(0, self.count, 1_000):
                broker.send_many(TOPIC, orders[first : first + 1_000])

        def recall_rest() -> None:
            keys = [f"order-{number}" for number in range(0, self.count, 2)]
            with broker.connection() as connection, connection.cursor() as cursor:
                for first in range(0, len(keys), 1_000):
                    cursor.execute(DUEWHEEL_RECALL_REST, (TOPIC, keys[first : first + 1_000]))

        def is_over() -> bool:
            (topic,) = broker.stats().topics
            (group,) = topic.groups
            return topic.waiting == group.ready == group.inflight == 0

        return self.measure(make, lambda key: broker.recall_key(TOPIC, key), recall_rest, is_over)

    def airflows(self, way: str) -> Readings:
        """With one of Airflow's own ways."""

        def make(first_at: datetime) -> None:
            self.stand.make_runs(way, self.count, first_at, self.window)
            wait(
                lambda: self.ask(ALL_TAKEN) == [(True,)], "the triggerer's taking of all triggers", self.lead
            )

        return self.measure(
            make,
            lambda run: self.stand.recall_run(way, run),
            lambda: self.ask(RECALL_REST, way, ["queued", "running"]),
            lambda: self.ask(NONE_IS_LEFT, way) == [(True,)],
        )


@contextmanager
def _stand(bench: Bench) -> Iterator[AirflowStand]:
    # A triggerer that takes every trigger there is.
    capacity = {"AIRFLOW__TRIGGERER__CAPACITY": "1000000"}
    with airflow_stand(bench, lambda _: DAGS, ("duewheel", *WAYS), **capacity) as stand:
        yield stand


def waiting(bench: Bench) -> Iterator[Row]:
    """Rows, memory and recalls of 1 000 timeouts in each way."""
    count = 1_000
    with _stand(bench) as stand:
        ours = Waiting(stand, count, 22, 30).duewheel()
        theirs = {way: Waiting(stand, count, 170, 30).airflows(way) for way in WAYS}
    for way, other in theirs.items():
        for name, (text, unit) in ROWS.items():
            what = f"{thousands(count)} waiting, half recalled: {text}"
            yield Row(f"{name}-{way}-{count}", what, unit, [ours[name]], [other[name]], WAYS[way])


def alone(bench: Bench) -> Iterator[Row]:
    """The cost of 100 000 messages to Airflow."""
    count = 100_000
    with _stand(bench) as stand:
        ours = Waiting(stand, count, 20 + count / 300, 60).duewheel()
    yield Row(
        f"memory-alone-{count}",
        f"{thousands(count)} messages waiting, half recalled: more memory of triggerer and scheduler",
        "MB",
        [ours["memory"]],
        goals=[Goal(20, "at most", "ours")],
    )


SUBJECTS = [
    Subject("waiting", "timeouts that wait in Airflow, by duewheel and by Airflow's own ways", waiting),
    Subject("alone", "100 000 timeouts that wait in Airflow by duewheel alone", alone),
]

if __name__ == "__main__":
    main("waiting_in_airflow", __doc__, SUBJECTS)
