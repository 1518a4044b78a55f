"""Airflow with all its parts and any number of triggerers, each of which may be killed or stopped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import psutil
from tests.airflow_parts import AirflowParts, Part
from tests.waiting import ask, connected, until

from duewheel.cli.demo.airflow_standalone import Settings
from duewheel.cli.demo.processes import end_sessions, session_members

#: A lost triggerer is missed within seconds, and a cleared task hears it soon.
HURRIED = {
    "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "1",
    "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "4",
    "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "1",
    # A DAG whose runs Airflow has miscounted, as parts of it were killed, is started again by its next parse.
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "60",
}


class Given(NamedTuple):
    """A message that a task was given."""

    key: str
    run: str


class LiveAirflow(AirflowParts):
    """All parts of Airflow, with as many triggerers as are started.

    Args:
        settings: where it lives.
        pipes: where tasks note what they are given, and find the pipes over which they are told to go on.
    """

    def __init__(self, settings: Settings, pipes: Path) -> None:
        variables = {**HURRIED, "DUEWHEEL_TEST_DIRECTORY": str(pipes)}
        super().__init__(replace(settings, variables=variables))
        self._pipes = pipes
        self._triggerers: dict[int, Part] = {}

    def until(self, happened: Callable[[], object], what: str) -> None:
        """Return when ``happened()`` is true: the parts of Airflow give no sign of their own."""
        # Asked over the API and of Airflow's database, neither of which tells of a change.
        until(happened, what, pause_seconds=0.1)

    def call(self, method: str, path: str, body: dict[str, Any]) -> Any:
        """Ask the public API for a change."""
        return self.api.call(method, f"/api/v2/{path}", body)

    def change_run(self, method: str, dag_id: str, run: str, what: str, body: dict[str, Any]) -> None:
        """Ask the public API for a change of a run."""
        self.call(method, f"dags/{dag_id}/dagRuns/{quote(run)}{what}", body)

    def ask(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Return what Airflow's own database answers."""
        with connected(self.settings.database_dsn) as connection:
            return ask(connection, query, *parameters)

    # -- restarts --------------------------------------------------------------------------------------------

    def at_work(self) -> list[Part]:
        """Return the parts that are at work."""
        return [part for part in self.started if part.process.poll() is None]

    def start_again(self, parts: list[Part]) -> list[Part]:
        """Start those that have ended again, as a supervisor does, and return all as they are by then.

        What one has left running ends before, as with a service or a container.
        """
        return [part if part.process.poll() is None else self._started_again(part) for part in parts]

    def _started_again(self, part: Part) -> Part:
        end_sessions([part.process.pid])
        self.started.remove(part)
        return self.start_part(part.name)

    # -- triggerers ------------------------------------------------------------------------------------------

    def know_triggerer(self) -> None:
        """Wait until the first triggerer is at work, and remember it."""
        self._remember(next(part for part in self.started if part.name == "triggerer"))

    def add_triggerer(self) -> None:
        """Start a further triggerer, which is at work when this returns."""
        self._remember(self.start_part("triggerer"))

    def _remember(self, part: Part) -> None:
        """Airflow names a triggerer by the job it registers: the newest is that of the newest process."""

        def registered() -> list[int]:
            rows = self.ask("select id from job where job_type = 'TriggererJob' order by id")
            return [job for (job,) in rows if job not in self._triggerers]

        self.until(registered, "a triggerer to start")
        self._triggerers[registered()[-1]] = part

    def active(self, asset: str) -> int | None:
        """Return the triggerer that has the watcher of the asset; None where nobody has."""
        rows = self.ask(
            "select triggerer_id from trigger join asset_watcher on trigger_id = trigger.id"
            " join asset on asset.id = asset_id where asset.name = %s",
            asset,
        )
        return next((job for (job,) in rows), None)

    def until_active(self, asset: str, *, after: int | None = None) -> int:
        """Wait until a triggerer, other than ``after``, has the watcher of the asset, and return which."""
        found: list[int] = []

        def taken_over() -> bool:
            job = self.active(asset)
            if job is None or job == after:
                return False
            found.append(job)
            return True

        self.until(taken_over, "a triggerer to take the watcher over")
        return found[-1]

    def leader(self, triggerer: int) -> psutil.Process:
        """Return the triggerer's own process, which the one with its triggers is a child of."""
        return psutil.Process(self._triggerers[triggerer].process.pid)

    def processes(self, triggerer: int) -> list[psutil.Process]:
        """Return all processes of the triggerer."""
        return session_members([self._triggerers[triggerer].process.pid])

    # -- runs ------------------------------------------------------------------------------------------------

    def given(self, topic: str) -> list[Given]:
        """Return what tasks noted that they were given, in order."""
        file = self._pipes / topic
        return [Given(*line.split()) for line in file.read_text().splitlines()] if file.exists() else []

    def is_idle(self, dag_id: str) -> bool:
        """Whether no run of the DAG is queued or running."""
        return not self.ask(
            "select 1 from dag_run where dag_id = %s and state in ('queued', 'running')", dag_id
        )
