"""Real runs of DAGs, each in a process of its own with an Airflow home of its own.

``dag.test()`` runs every task through Airflow's own task runner, the deferred ones through their triggers,
against a real metadata database. It lives in another process because Airflow's own code warns of things that
are errors in tests here.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from duewheel.cli.demo.airflow_standalone import connection_json

__all__ = ["AirflowHome", "RunResult", "connection_json"]

RUN_DAG = Path(__file__).parent / "run_dag.py"

#: Nothing waits for it unless something is broken.
PATIENCE_SECONDS = 600


@dataclass(frozen=True)
class TaskResult:
    """The outcome of one task instance."""

    state: str
    xcom: Any
    links: dict[str, str]
    """By the key under which Airflow keeps them."""


@dataclass(frozen=True)
class RunResult:
    """The outcome of one run of a DAG."""

    state: str
    tasks: dict[str, TaskResult]
    """By task id; mapped ones by ``task_id[map_index]``."""
    log: str
    events: dict[str, Any]
    """The content of each task's asset event."""


@cache
def _metadata() -> Path:
    """A metadata database with its tables: made once, and copied for each home."""
    directory = Path(tempfile.mkdtemp(dir=os.environ["PYTEST_DEBUG_TEMPROOT"]))
    subprocess.run(
        [sys.executable, "-m", "airflow", "db", "migrate"],
        env={**os.environ, "AIRFLOW_HOME": str(directory)},
        check=True,
        capture_output=True,
    )
    return directory / "airflow.db"


class AirflowHome:
    """A home for Airflow with a metadata database, whose DAGs reach the broker at ``dsn``.

    Args:
        directory: an empty directory.
        dsn: the broker's database, for the connection ``duewheel_default``.
        variables: further environment variables.
    """

    def __init__(self, directory: Path, dsn: str, **variables: str) -> None:
        self.dags = directory / "dags"
        self.dags.mkdir()
        self._directory = directory
        self.environment = {
            **os.environ,
            "AIRFLOW_HOME": str(directory),
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.dags),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW_CONN_DUEWHEEL_DEFAULT": connection_json(dsn),
            **variables,
        }
        shutil.copy(_metadata(), directory)

    def start(self, dag: str) -> subprocess.Popen[str]:
        """Begin a run of the DAG in ``dags/<dag>.py``, in a process of its own."""
        return subprocess.Popen(
            [sys.executable, str(RUN_DAG), str(self.dags / f"{dag}.py"), str(self._result_of(dag))],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def finish(self, dag: str, process: subprocess.Popen[str]) -> RunResult:
        """Wait for the run to end and return what became of it."""
        log, _ = process.communicate(timeout=PATIENCE_SECONDS)
        result = self._result_of(dag)
        if not result.exists():
            raise AssertionError(f"the run of {dag} came to nothing:\n{log}")
        said = json.loads(result.read_text())
        tasks = {name: TaskResult(**task) for name, task in said["tasks"].items()}
        return RunResult(said["state"], tasks, log, said["events"])

    def run(self, dag: str) -> RunResult:
        """Run the DAG in ``dags/<dag>.py`` to its end."""
        return self.finish(dag, self.start(dag))

    def _result_of(self, dag: str) -> Path:
        return self._directory / f"{dag}.json"
