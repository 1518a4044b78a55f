"""From the due instant to the first line of the task's code, in an event-driven DAG of a real Airflow.

Beside it stands a trigger that fires at its instant and starts a plain task. That shows Airflow's own share:
hearing the event, making a run, scheduling its task and starting a process for it. This takes seconds, and
differs from run to run by more than duewheel adds. So the ring and the receive are also measured by
themselves in each run: from the due instant to the ring of the doorbell, and from the call of the operator to
the author's code, beside the same call of the plain task. Within the receive, Airflow looks its connection
up, as for any task with a connection; that time is measured apart. The DAG file's imports, which a task's
process does before that call, are measured by `benchmarks.felt_in_airflow`.

Due instants lie anywhere between two rounds of Airflow's loops, and each side finishes before the other
begins. 15 runs of each side take about five minutes, the 100 of --long half an hour.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import Random

from benchmarks.airflow_stand import airflow_stand, happens, is_idle, noted
from benchmarks.at_instants import TO_COME
from benchmarks.bench import Bench, Subject
from benchmarks.measure import Goal, Row, percentile
from benchmarks.program import main
from duewheel.cli.demo.airflow_api import AirflowApi
from duewheel.store import Broker

TOPIC, GROUP = "timeouts", "canceller"
RUN_SECONDS = 120.0
#: This long before a due instant, all is sent and idle.
LEAD_SECONDS = 2.0
#: Runs of each side that are thrown away: the first of a process imports.
WARM_UP = 2

DAGS = f"""
import json
import time
from airflow.sdk import DAG, Asset, AssetWatcher, Connection, task
from benchmarks.at_instants import AtInstants, NotingTimingWheel

CALLED = []
LOOKED_UP = []

def called(context):
    CALLED.append(time.time())

def looked_up(conn_id, get=Connection.get):
    begun_at = time.time()
    connection = get(conn_id)
    LOOKED_UP.append(time.time() - begun_at)
    return connection

Connection.get = looked_up

def due(trigger):
    return [Asset(type(trigger).__name__, watchers=[AssetWatcher(name="watcher", trigger=trigger)])]

def note(now, ti, triggering_asset_events, due_at):
    (event,) = [event for events in triggering_asset_events.values() for event in events]
    payload = event.extra["payload"]
    with open("{{notes}}", "a") as file:
        file.write(json.dumps(dict(
            dag=ti.dag_id, code_at=now, called_at=CALLED[-1], rang_at=payload["rang_at"],
            due_at=due_at or payload["due_at"], looked_up_seconds=sum(LOOKED_UP),
        )) + "\\n")

wheel = due(NotingTimingWheel("{TOPIC}", "{GROUP}"))
with DAG("duewheel", schedule=wheel, max_active_runs=1):

    @task.due_messages(topic="{TOPIC}", group="{GROUP}", pre_execute=called)
    def cancel(messages, ti, triggering_asset_events):
        note(time.time(), ti, triggering_asset_events, messages[0].deliver_at.timestamp())

    cancel()

with DAG("at_once", schedule=due(AtInstants("{{instants}}")), max_active_runs=1):

    @task(pre_execute=called)
    def plain(ti, triggering_asset_events):
        note(time.time(), ti, triggering_asset_events, None)

    plain()
"""


@dataclass(frozen=True)
class Run:
    """The instants of one run, in seconds since the epoch."""

    due_at: float
    rang_at: float
    called_at: float
    code_at: float
    looked_up_seconds: float

    @property
    def whole_ms(self) -> float:
        """From the due instant to the author's code."""
        return (self.code_at - self.due_at) * 1000

    @property
    def ring_ms(self) -> float:
        """From the due instant to the ring."""
        return (self.rang_at - self.due_at) * 1000

    @property
    def receive_ms(self) -> float:
        """From the call of the operator to the author's code: connected, received and leased."""
        return (self.code_at - self.called_at) * 1000

    @property
    def look_up_ms(self) -> float:
        """Of the receive: Airflow's look-up of the connection."""
        return self.looked_up_seconds * 1000

    @property
    def own_ms(self) -> float:
        """The ring and the receive together, without Airflow's look-up of the connection."""
        return self.ring_ms + self.receive_ms - self.look_up_ms


@dataclass
class Stand:
    """The Airflow that is measured."""

    api: AirflowApi
    broker: Broker
    notes: Path
    instants: Path

    def runs(self, dag_id: str) -> list[Run]:
        """The notes of a DAG's runs."""
        return [
            Run(
                each["due_at"],
                each["rang_at"],
                each["called_at"],
                each["code_at"],
                each["looked_up_seconds"],
            )
            for each in noted(self.notes)
            if each["dag"] == dag_id
        ]

    def one(self, dag_id: str, due_at: float) -> Run:
        """Make one run of the DAG, due at an instant, and return it when Airflow is at rest again."""
        before = len(self.runs(dag_id))
        if dag_id == "duewheel":
            self.broker.send(TOPIC, b"x", deliver_at=datetime.fromtimestamp(due_at, UTC))
        else:
            new = self.instants.with_suffix(".new")
            new.write_text(str(due_at))
            new.rename(self.instants)
        _wait(lambda: len(self.runs(dag_id)) > before, due_at + RUN_SECONDS - time.time())
        _wait(lambda: is_idle(self.api, dag_id), RUN_SECONDS)
        return self.runs(dag_id)[-1]


def _wait(condition: Callable[[], bool], limit_seconds: float) -> None:
    if not happens(condition, limit_seconds):
        raise TimeoutError(f"Airflow did not do its part within {limit_seconds:.0f} s")


@contextmanager
def _stand(bench: Bench) -> Iterator[Stand]:
    def dags(home: Path) -> str:
        return DAGS.format(notes=home / "notes", instants=home / "instants")

    with airflow_stand(bench, TOPIC, dags, ("duewheel", "at_once")) as stand:
        home = stand.airflow.settings.home
        yield Stand(stand.airflow.api, stand.broker, home / "notes", home / "instants")


def due_to_task(bench: Bench) -> Iterator[Row]:
    """The whole way on both sides, and the ring and the receive by themselves."""
    count = bench.size(100, 15)
    anywhere = Random(7)
    ours: list[Run] = []
    theirs: list[Run] = []
    with _stand(bench) as stand:
        for number in range(WARM_UP + count):
            for dag_id, runs in (("duewheel", ours), ("at_once", theirs)):
                due_at = time.time() + LEAD_SECONDS + TO_COME + anywhere.random()
                run = stand.one(dag_id, due_at)
                if number >= WARM_UP:
                    runs.append(run)
    parts: dict[str, tuple[str, Callable[[Run], float]]] = {
        "own": (
            "the ring and the receive, without Airflow's look-up of the connection",
            lambda run: run.own_ms,
        ),
        "ring": ("due instant to the ring of the doorbell", lambda run: run.ring_ms),
        "receive": ("call of the operator to the author's code", lambda run: run.receive_ms),
        "look-up": ("of this, Airflow's look-up of the connection", lambda run: run.look_up_ms),
    }
    for percent in (50, 99):
        yield Row(
            f"due-to-task-p{percent}",
            f"due instant to the task's code, {count} runs, p{percent}",
            "ms",
            [percentile([run.whole_ms for run in ours], percent)],
            [percentile([run.whole_ms for run in theirs], percent)],
            "a trigger that fires at once and a plain task",
        )
    for name, (what, part) in parts.items():
        for percent in (50, 99):
            yield Row(
                f"due-to-task-{name}-p{percent}",
                f"{what}, p{percent}",
                "ms",
                [percentile([part(run) for run in ours], percent)],
                [percentile([part(run) for run in theirs], percent)] if name == "receive" else [],
                "the plain task" if name == "receive" else "",
                goals=[Goal(50, "at most", "ours")] if name == "own" else [],
            )


SUBJECTS = [Subject("due_to_task", "due instant to the first line of the task's code", due_to_task)]

if __name__ == "__main__":
    # Installed packages come with their bytecode.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    main("due_to_task", __doc__, SUBJECTS)
