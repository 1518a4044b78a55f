"""From the due instant to the first line of the task, in a real Airflow: duewheel beside Airflow's own ways.

Timeouts come due one by one, far enough apart that Airflow keeps up. In each way the finish line is the same,
the first line of the author's task: of a task that a message's run starts, of the task of a run with
`run_after`, and of the task behind a deferred `DateTimeTrigger`. Then ten timeouts come due together; while
their tasks run, each is recalled, and the answer should be that this came too late. A pair takes about three
minutes.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from benchmarks.airflow_stand import airflow_stand, happens, is_idle, noted
from benchmarks.bench import Bench, Subject
from benchmarks.measure import Row, percentile
from benchmarks.program import main
from benchmarks.waiting_in_airflow import WAYS, recall
from duewheel.cli.demo.airflow_standalone import AirflowStandalone
from duewheel.store import Broker

TOPIC, GROUP = "timeouts", "canceller"
#: Airflow does not always start and end a task in less than that on two cores.
APART_SECONDS = 3.0
#: Before the first due instant all rows are there, and the triggerer has taken its triggers.
LEAD_SECONDS = 15.0
#: Recalls that come too late.
TOO_LATE = 10
PATIENCE_SECONDS = 120.0

DAGS = """
import json
import time
from datetime import timedelta
from pathlib import Path
from airflow.providers.standard.sensors.date_time import DateTimeSensorAsync
from airflow.sdk import DAG, Asset, AssetWatcher, task
from duewheel.triggers.timing_wheel import TimingWheelTrigger

def note(dag_id, numbers):
    now = time.time()
    with open("{home}/notes", "a") as file:
        file.write("".join(json.dumps(dict(dag=dag_id, number=int(n), at=now)) + "\\n" for n in numbers))
    # A file is all that the benchmark and a task share.
    while Path("{home}/hold").exists():
        time.sleep(0.2)

@task
def cancel(ti):
    note(ti.dag_id, [ti.run_id.removeprefix("order-")])

with DAG("run_after", schedule=None, max_active_runs=1_000):
    cancel()

with DAG("date_time_trigger", schedule=None, max_active_runs=1_000):
    DateTimeSensorAsync(task_id="wait", target_time="{{{{ run_after }}}}") >> cancel()

wheel = AssetWatcher(name="wheel", trigger=TimingWheelTrigger(topic="timeouts", group="canceller"))

with DAG("duewheel", schedule=[Asset("due", watchers=[wheel])], max_active_runs=1):

    @task.due_messages(topic="timeouts", group="canceller")
    def cancel_all(messages, ti):
        note(ti.dag_id, [message.key.removeprefix("order-") for message in messages])

    cancel_all()
"""


@dataclass
class Stand:
    """The Airflow that is measured, and what its tasks have noted."""

    airflow: AirflowStandalone
    broker: Broker
    home: Path
    #: The next timeout of any way.
    next_number: int = 0
    due_at: dict[int, datetime] = field(default_factory=dict)

    def make(self, way: str, count: int, apart_seconds: float) -> range:
        """Make timeouts that come due one after the other; returns their numbers."""
        numbers = range(self.next_number, self.next_number + count)
        self.next_number = numbers.stop
        first_at = datetime.now(UTC) + timedelta(seconds=LEAD_SECONDS)
        for place, number in enumerate(numbers):
            self.due_at[number] = first_at + timedelta(seconds=apart_seconds * place)
        if way == "duewheel":
            for number in numbers:
                self.broker.send(TOPIC, b"", key=f"order-{number}", deliver_at=self.due_at[number])
        else:
            made = (way, str(count), first_at.isoformat(), str(apart_seconds * count), str(numbers.start))
            subprocess.run(
                [sys.executable, "-m", "benchmarks.airflow_rows", *made],
                env=self.airflow.settings.environment(),
                stdout=subprocess.DEVNULL,
                check=True,
            )
        return numbers

    def begun(self, way: str, numbers: range) -> dict[int, float]:
        """When the first line of each timeout's task ran, in seconds since the epoch."""
        return {
            each["number"]: each["at"]
            for each in noted(self.home / "notes")
            if each["dag"] == way and each["number"] in numbers
        }

    def late_ms(self, way: str, count: int) -> list[float]:
        """From the due instant to the first line, for each of `count` timeouts."""
        numbers = self.make(way, count, APART_SECONDS)
        self._wait(way, numbers)
        begun = self.begun(way, numbers)
        self._rest(way)
        return [(begun[number] - self.due_at[number].timestamp()) * 1000 for number in numbers]

    def told(self, way: str) -> int:
        """How many of the recalls of running tasks were told that they came too late."""
        hold = self.home / "hold"
        hold.touch()
        try:
            numbers = self.make(way, TOO_LATE, 0.0)
            self._wait(way, numbers)
            return sum(not self._recall(way, f"order-{number}") for number in numbers)
        finally:
            hold.unlink()
            self._rest(way)

    def _recall(self, way: str, name: str) -> bool:
        if way == "duewheel":
            return self.broker.recall_key(TOPIC, name).value != "already_released"
        return recall(self.airflow.api, way, name)

    def _wait(self, way: str, numbers: range) -> None:
        span_seconds = (self.due_at[numbers[-1]] - datetime.now(UTC)).total_seconds()
        if not happens(
            lambda: len(self.begun(way, numbers)) == len(numbers), span_seconds + PATIENCE_SECONDS
        ):
            raise TimeoutError(f"{way}: not all of {len(numbers)} tasks began within {PATIENCE_SECONDS} s")

    def _rest(self, way: str) -> None:
        if not happens(lambda: is_idle(self.airflow.api, way), PATIENCE_SECONDS):
            raise TimeoutError(f"{way}: runs did not end within {PATIENCE_SECONDS} s")


@contextmanager
def _stand(bench: Bench) -> Iterator[Stand]:
    names = ("duewheel", *WAYS)
    # All tasks that are recalled run at once.
    beside = {"AIRFLOW__CORE__PARALLELISM": "16"}
    with airflow_stand(bench, TOPIC, lambda home: DAGS.format(home=home), names, **beside) as stand:
        yield Stand(stand.airflow, stand.broker, stand.airflow.settings.home)


def first_line(bench: Bench) -> Iterator[Row]:
    """Lateness at the first line, and recalls that come too late."""
    count = bench.size(30, 12)
    sides = ("duewheel", *WAYS)
    late: dict[str, list[list[float]]] = {way: [] for way in sides}
    told: dict[str, list[float]] = {way: [] for way in sides}
    with _stand(bench) as stand:
        for way in sides:
            # The first task of a process imports.
            stand.late_ms(way, 2)
        for pair in range(bench.pairs):
            for way in sides if pair % 2 else reversed(sides):
                late[way].append(stand.late_ms(way, count))
        for way in sides:
            told[way].append(stand.told(way))
    for way, text in WAYS.items():
        for percent in (50, 99):
            yield Row(
                f"first-line-p{percent}-{way}",
                f"due instant to the task's first line, {count} timeouts, p{percent}",
                "ms",
                [percentile(each, percent) for each in late["duewheel"]],
                [percentile(each, percent) for each in late[way]],
                text,
            )
        yield Row(
            f"told-{way}",
            f"of {TOO_LATE} recalls while the tasks run, told that they came too late",
            "",
            told["duewheel"],
            told[way],
            text,
        )


SUBJECTS = [
    Subject("first_line", "due instant to the first line of the task, beside Airflow's ways", first_line)
]

if __name__ == "__main__":
    main("first_line", __doc__, SUBJECTS)
