"""Triggerers of their own, on an Airflow that has neither a scheduler nor a DAG processor."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from tests.airflow_runs import AirflowHome
from tests.waiting import until

from duewheel.cli.demo.processes import end_sessions

#: Its trigger watches for the group ``g`` on the topic ``t``.
WATCHING = """
from airflow.sdk import DAG, Asset, AssetWatcher
from duewheel.triggers.timing_wheel import TimingWheelTrigger

trigger = TimingWheelTrigger(topic="t", group="g", ring_again=0.5)
due = Asset("due", watchers=[AssetWatcher(name="wheel", trigger=trigger)])
dag = DAG("watching", schedule=[due], is_paused_upon_creation=False)
"""
#: No test lasts so long: a triggerer that waits for it never takes a watcher over.
FOR_EVER_SECONDS = 1_000_000


class Triggerers:
    """Triggerers on one Airflow.

    Args:
        home: Airflow's.
        directory: where it lives.
    """

    def __init__(self, home: AirflowHome, directory: Path) -> None:
        self._home = home
        self._database = directory / "airflow.db"
        self._log = directory / "triggerer.log"

    def add(self, name: str, text: str, *, reads: bool = True) -> None:
        """Write a file of DAGs, and have Airflow read all of them.

        Args:
            name: the file's.
            text: what is in it.
            reads: whether Airflow reads them now.
        """
        (self._home.dags / f"{name}.py").write_text(text)
        if reads:
            self.airflow("dags", "reserialize")

    def airflow(self, *arguments: str) -> None:
        """Run a command of Airflow."""
        # Not a fork of the runner: it encrypts by the key of this home, as the triggerers do.
        done = subprocess.run(
            [sys.executable, "-m", "airflow", *arguments],
            env=self._home.environment,
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr

    @contextmanager
    def start(
        self, threshold_seconds: int = FOR_EVER_SECONDS, **variables: str
    ) -> Iterator[subprocess.Popen[bytes]]:
        """A triggerer that takes watchers over from one that was silent for so long.

        Args:
            threshold_seconds: how long.
            variables: further variables of its environment.
        """
        threshold = {"AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": str(threshold_seconds)}
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "airflow", "triggerer", "--skip-serve-logs"],
                env=self._home.environment | threshold | variables,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            yield process
        finally:
            end_sessions([process.pid])
            process.wait()

    def rings(self) -> int:
        """How often doorbells have started runs or would have."""
        ((count,),) = self.ask(
            "select count(*) from asset_event e join asset a on a.id = e.asset_id where a.name = 'due'"
        )
        return int(count)

    def triggerer(self) -> int | None:
        """The triggerer to which the watcher belongs; None where nobody has it."""
        query = "select triggerer_id from trigger where classpath like '%TimingWheelTrigger'"
        return next((number for (number,) in self.ask(query)), None)

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        """What Airflow's database answers; a change stays."""
        with closing(sqlite3.connect(self._database, timeout=60)) as connection, connection:
            return connection.execute(query).fetchall()

    def log(self) -> str:
        """What all triggerers have logged."""
        return self._log.read_text()

    def until_ring(self, process: subprocess.Popen[bytes]) -> None:
        """Wait for the next ring, while the triggerer lives."""
        before = self.rings()
        self.until(process, lambda: self.rings() > before, "a ring")

    def until(self, process: subprocess.Popen[bytes], happened: Callable[[], bool], what: str) -> None:
        """Wait for something, while the triggerer lives."""

        def happens() -> bool:
            assert process.poll() is None, self.log()
            return happened()

        until(happens, what, pause_seconds=0.1)
