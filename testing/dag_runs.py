"""Runs of DAGs by ``dag.test()``, each in a separate process with a separate Airflow home.

``dag.test()`` runs every task through Airflow's own task runner, the deferred ones through their triggers,
against a real metadata database. That database is made once, and copied for each run. The process keeps the
run from the caller's Airflow, whose database may be a real one.
"""

from __future__ import annotations

import inspect
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any, Final

from duewheel.store.values.errors import InvalidArgument
from duewheel.store.values.kinds import a_kind

#: Longer than any wait unless something is broken.
PATIENCE_SECONDS: Final = 600


@dataclass(frozen=True)
class TaskResult:
    """The outcome of one task instance.

    Attributes:
        state: ``success``, ``failed``, ``skipped`` and so on.
        xcom: the task's result; a result that is not JSON is text.
        links: the task's links in Airflow's UI, by the key under which Airflow keeps them.
    """

    state: str
    xcom: Any
    links: dict[str, str]


@dataclass(frozen=True)
class DagRunResult:
    """The outcome of one run of a DAG.

    Attributes:
        state: ``success`` or ``failed``.
        tasks: by task id; mapped tasks by ``task_id[map_index]``.
        log: all that the run has written.
        events: the content of each task's asset event, by task id.
    """

    state: str
    tasks: dict[str, TaskResult]
    log: str
    events: dict[str, Any]


@dataclass(frozen=True)
class DeclaredDag:
    """A DAG, as its process finds it: its file and id, and the connections of duewheel that it names."""

    file: Path
    dag_id: str
    conn_ids: frozenset[str]


def declared(dag: Any) -> DeclaredDag:
    """The file, id and connections of a DAG.

    Args:
        dag: a DAG, or the function that ``@dag`` makes.

    Raises:
        InvalidArgument: it is not a DAG.
    """
    from airflow.sdk import DAG

    file = None
    if callable(dag) and hasattr(dag, "__wrapped__"):
        # A DAG names the file that called its function, which is this one.
        file = inspect.getsourcefile(inspect.unwrap(dag))
        dag = dag()
    if not isinstance(dag, DAG):
        raise InvalidArgument(f"run_dag got {a_kind(dag)}: give a DAG, or the function of a @dag")
    named = {getattr(task, "duewheel_conn_id", None) for task in dag.tasks}
    return DeclaredDag(
        file=Path(file or dag.fileloc).resolve(),
        dag_id=dag.dag_id,
        conn_ids=frozenset(name for name in named if isinstance(name, str) and "{" not in name),
    )


class AirflowHome:
    """A home for Airflow with a metadata database, from whose DAGs folder DAGs are run.

    Args:
        directory: an empty directory.
        metadata: a metadata database with its tables, to be copied.
        variables: further environment variables.
    """

    def __init__(self, directory: Path, metadata: Path, **variables: str) -> None:
        self.dags = directory / "dags"
        self.dags.mkdir()
        self._directory = directory
        self.environment = environment(directory) | {"AIRFLOW__CORE__DAGS_FOLDER": str(self.dags)} | variables
        shutil.copy(metadata, directory)

    def start(self, name: str) -> subprocess.Popen[str]:
        """Begin a run of the one DAG in ``dags/NAME.py``, in a separate process."""
        return self.start_file(self.dags / f"{name}.py")

    def start_file(self, file: Path, *arguments: str) -> subprocess.Popen[str]:
        """Begin a run of a DAG of any file; the further arguments are those of ``run_dag.py``."""
        result = self._result_of(file.stem)
        return subprocess.Popen(
            [sys.executable, "-m", "duewheel.testing.run_dag", str(file), str(result), *arguments],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def finish(self, name: str, process: subprocess.Popen[str]) -> DagRunResult:
        """Wait for the run to end and return its result.

        Raises:
            AssertionError: the run broke off or did not end; it has its log.
        """
        try:
            log, _ = process.communicate(timeout=PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            log, _ = process.communicate()
            raise AssertionError(
                f"the run of {name} had not ended after {PATIENCE_SECONDS} s and was ended:\n{log}"
            ) from None
        result = self._result_of(name)
        if not result.exists():
            raise AssertionError(f"the run of {name} has no result:\n{log}")
        said = json.loads(result.read_text())
        tasks = {name: TaskResult(**task) for name, task in said["tasks"].items()}
        return DagRunResult(said["state"], tasks, log, said["events"])

    def run(self, name: str) -> DagRunResult:
        """Run the one DAG in ``dags/NAME.py`` to its end."""
        return self.finish(name, self.start(name))

    def _result_of(self, name: str) -> Path:
        return self._directory / f"{name}.json"


class Airflow:
    """Makes a home for each run of a DAG.

    Args:
        directory: an empty directory for all of them.

    Attributes:
        home: makes a home.
    """

    home = AirflowHome

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._numbers = count(1)

    def run(
        self, dag: DeclaredDag, *, conf: Mapping[str, Any] | None, left_out: str | None, ends: str
    ) -> DagRunResult:
        """Run a DAG; for the arguments see :meth:`BrokerInTest.run_dag`."""
        directory = self._directory / f"run-{next(self._numbers)}"
        directory.mkdir()
        home = self.home(directory, self.metadata)
        process = home.start_file(
            dag.file, dag.dag_id, json.dumps(dict(conf or {})), left_out or "", "standing"
        )
        run = home.finish(dag.file.stem, process)
        if run.state != ends:
            raise AssertionError(f"the run of {dag.dag_id} ended as {run.state}, not {ends}:\n{run.log}")
        return run

    @cached_property
    def metadata(self) -> Path:
        """A metadata database with its tables."""
        directory = self._directory / "metadata"
        directory.mkdir()
        done = subprocess.run(
            [sys.executable, "-m", "airflow", "db", "migrate"],
            env=environment(directory),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            raise AssertionError(f"Airflow's metadata database could not be made:\n{done.stdout}")
        return directory / "airflow.db"


def environment(home: Path) -> dict[str, str]:
    """The environment of an Airflow that shares no settings with the caller's, with the caller's imports."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("AIRFLOW__") and name not in ("AIRFLOW_HOME", "AIRFLOW_CONFIG")
    }
    return kept | {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        # For slow machines: the import of a DAG file must not time out.
        "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "300",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
