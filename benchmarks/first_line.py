"""From the due instant to the first line of the task, in a real Airflow: duewheel and Airflow's own ways.

Timeouts are due one by one, far enough apart that Airflow keeps up. In each way the finish line is the same,
the first line of the author's task: of a task that a message's run starts, of the task of a run with
`run_after`, and of the task after a deferred `DateTimeTrigger`. Then ten timeouts are due together. While
their tasks run, each is recalled, and the answer should be "too late". A pair takes about three minutes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from benchmarks.airflow_stand import NOTE, PATIENCE_SECONDS, TOPIC, WAYS, AirflowStand, airflow_stand, wait
from benchmarks.bench import Bench, Subject
from benchmarks.measure import Row, percentile
from benchmarks.program import main

#: Airflow does not always start and end a task in less than that on two cores.
APART_SECONDS = 3.0
#: Before the first due instant all rows are there, and the triggerer has taken its triggers.
LEAD_SECONDS = 15.0
#: Recalls that are too late.
TOO_LATE = 10

DAGS = f"""
{NOTE}
from pathlib import Path
from airflow.providers.standard.sensors.date_time import DateTimeSensorAsync

def begin(dag_id, names):
    for name in names:
        note(dag=dag_id, number=int(name.removeprefix("order-")))
    # A file is all that the benchmark and a task share.
    while Path("{{home}}/hold").exists():
        time.sleep(0.2)

@task
def cancel(ti):
    begin(ti.dag_id, [ti.run_id])

with DAG("run_after", schedule=None, max_active_runs=1_000):
    cancel()

with DAG("date_time_trigger", schedule=None, max_active_runs=1_000):
    DateTimeSensorAsync(task_id="wait", target_time="{{{{{{{{ run_after }}}}}}}}") >> cancel()

wheel = AssetWatcher(name="wheel", trigger=TimingWheelTrigger(topic="timeouts", group="canceller"))

with DAG("duewheel", schedule=[Asset("due", watchers=[wheel])], max_active_runs=1):

    @task.due_messages(topic="timeouts", group="canceller")
    def cancel_all(messages, ti):
        begin(ti.dag_id, [message.key for message in messages])

    cancel_all()
"""


@dataclass
class Timeouts:
    """Timeouts in the Airflow that is measured."""

    stand: AirflowStand
    #: The next timeout of any way.
    next_number: int = 0

    def begun(self, way: str, count: int, apart_seconds: float) -> dict[int, float]:
        """Make timeouts that are due one after the other, and wait until the first line of each ran.

        Returns:
            By the number of each timeout, the milliseconds from its due instant to that line.
        """
        numbers = range(self.next_number, self.next_number + count)
        self.next_number = numbers.stop
        first_at = datetime.now(UTC) + timedelta(seconds=LEAD_SECONDS)
        due_at = {n: first_at + timedelta(seconds=apart_seconds * place) for place, n in enumerate(numbers)}
        if way == "duewheel":
            for number in numbers:
                self.stand.broker.send(TOPIC, b"", key=f"order-{number}", deliver_at=due_at[number])
        if way != "duewheel":
            self.stand.make_runs(way, count, first_at, apart_seconds * count, numbers.start)

        def begun() -> dict[int, float]:
            at = {each["number"]: each["at"] for each in self.stand.noted(way)}
            return {n: (at[n] - due_at[n].timestamp()) * 1000 for n in numbers if n in at}

        span_seconds = LEAD_SECONDS + apart_seconds * count + PATIENCE_SECONDS
        wait(lambda: len(begun()) == count, f"the begin of {count} tasks of {way}", span_seconds)
        return begun()

    def late_ms(self, way: str, count: int) -> list[float]:
        """From the due instant to the first line, for each of `count` timeouts."""
        begun = self.begun(way, count, APART_SECONDS)
        self.stand.wait_idle(way)
        return list(begun.values())

    def told(self, way: str) -> int:
        """How many recalls of running tasks were answered with "too late"."""
        hold = self.stand.home / "hold"
        hold.touch()
        try:
            names = [f"order-{number}" for number in self.begun(way, TOO_LATE, 0.0)]
            if way == "duewheel":
                answers = [self.stand.broker.recall_key(TOPIC, name).outcome.value for name in names]
                return answers.count("already_released")
            return sum(not self.stand.recall_run(way, name) for name in names)
        finally:
            hold.unlink()
            self.stand.wait_idle(way)


def first_line(bench: Bench) -> Iterator[Row]:
    """Lateness at the first line, and recalls that are too late."""
    count = bench.size(30, 12)
    sides = ("duewheel", *WAYS)
    late: dict[str, list[list[float]]] = {way: [] for way in sides}
    told: dict[str, list[float]] = {way: [] for way in sides}

    def dags(home: Path) -> str:
        return DAGS.format(home=home)

    # All tasks that are recalled run at once.
    with airflow_stand(bench, dags, sides, AIRFLOW__CORE__PARALLELISM="16") as stand:
        timeouts = Timeouts(stand)
        for way in sides:
            # The first task of a process imports.
            timeouts.late_ms(way, 2)
        for pair in range(bench.pairs):
            for way in sides if pair % 2 else reversed(sides):
                late[way].append(timeouts.late_ms(way, count))
        for way in sides:
            told[way].append(timeouts.told(way))
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
