"""From the due instant to the first line of the task's code, in an event-driven DAG of a real Airflow.

A trigger that fires at its instant and starts a plain task is measured in the same way. It shows Airflow's
own share: hearing the event, making a run, scheduling its task and starting a process for it. This takes
seconds, and differs from run to run by more than duewheel adds. So the ring of the doorbell is also measured
separately. `benchmarks.felt_in_airflow` measures the call of the operator.

Due instants are at random times between two rounds of Airflow's loops, and each side finishes before the
other begins. 15 runs of each side take about five minutes, the 100 of --long half an hour.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from random import Random

from benchmarks.airflow_stand import GROUP, NOTE, TOPIC, AirflowStand, airflow_stand, wait
from benchmarks.at_instants import TO_COME
from benchmarks.bench import Bench, Subject
from benchmarks.measure import Row, percentile
from benchmarks.program import main

#: This long before a due instant, all is sent and idle.
LEAD_SECONDS = 2.0
#: Runs of each side that are thrown away: the first of a process imports.
WARM_UP = 2

DAGS = f"""
{NOTE}
from benchmarks.at_instants import AtInstants, NotingTimingWheel

def due(trigger):
    return [Asset(type(trigger).__name__, watchers=[AssetWatcher(name="watcher", trigger=trigger)])]

def note_run(dag, triggering_asset_events):
    (event,) = [event for events in triggering_asset_events.values() for event in events]
    note(dag=dag, rang_at=event.extra["payload"]["rang_at"])

with DAG("duewheel", schedule=due(NotingTimingWheel("{TOPIC}", "{GROUP}")), max_active_runs=1):

    @task.due_messages(topic="{TOPIC}", group="{GROUP}")
    def cancel(messages, triggering_asset_events):
        note_run("duewheel", triggering_asset_events)

    cancel()

with DAG("at_once", schedule=due(AtInstants("{{home}}/instants")), max_active_runs=1):

    @task
    def plain(triggering_asset_events):
        note_run("at_once", triggering_asset_events)

    plain()
"""


def _one(stand: AirflowStand, dag_id: str, due_at: float) -> tuple[float, float]:
    """Make one run of a DAG, due at an instant; the milliseconds until the code and until the ring."""
    before = len(stand.noted(dag_id))
    if dag_id == "duewheel":
        stand.broker.send(TOPIC, b"x", deliver_at=datetime.fromtimestamp(due_at, UTC))
    else:
        instants = stand.home / "instants"
        new = instants.with_suffix(".new")
        new.write_text(str(due_at))
        new.rename(instants)
    wait(lambda: len(stand.noted(dag_id)) > before, f"a run of {dag_id}")
    stand.wait_idle(dag_id)
    noted = stand.noted(dag_id)[-1]
    return (noted["at"] - due_at) * 1000, (noted["rang_at"] - due_at) * 1000


def due_to_task(bench: Bench) -> Iterator[Row]:
    """The whole way on both sides, and the ring separately."""
    count = bench.size(100, 15)
    anywhere = Random(7)
    runs: dict[str, list[tuple[float, float]]] = {"duewheel": [], "at_once": []}

    def dags(home: Path) -> str:
        return DAGS.format(home=home)

    with airflow_stand(bench, dags, tuple(runs)) as stand:
        for number in range(WARM_UP + count):
            for dag_id, done in runs.items():
                due_at = round(time.time() + LEAD_SECONDS + TO_COME + anywhere.random(), 3)
                run = _one(stand, dag_id, due_at)
                if number >= WARM_UP:
                    done.append(run)
    for percent in (50, 99):
        yield Row(
            f"due-to-task-p{percent}",
            f"due instant to the task's code, {count} runs, p{percent}",
            "ms",
            [percentile([whole for whole, _ in runs["duewheel"]], percent)],
            [percentile([whole for whole, _ in runs["at_once"]], percent)],
            "a trigger that fires at once and a plain task",
        )
        yield Row(
            f"due-to-task-ring-p{percent}",
            f"due instant to the ring of the doorbell, p{percent}",
            "ms",
            [percentile([ring for _, ring in runs["duewheel"]], percent)],
        )


SUBJECTS = [Subject("due_to_task", "due instant to the first line of the task's code", due_to_task)]

if __name__ == "__main__":
    main("due_to_task", __doc__, SUBJECTS)
