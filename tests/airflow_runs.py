"""Airflow homes with a broker, and runs of DAGs in them: ``duewheel.testing`` with one Airflow for all runs.

Runs are in another process because Airflow's own code warns of things that are errors in tests here. That
process imports Airflow once and forks for each run (``airflow_runner.py``).
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from threading import Timer

import pytest
from tests.waiting import PATIENCE_SECONDS

from duewheel.testing import dag_runs
from duewheel.testing.connections import connection_json
from duewheel.testing.dag_runs import DagRunResult as RunResult

__all__ = ["Airflow", "AirflowHome", "RunResult", "connection_json", "duewheel_airflow"]


class ForkedRun:
    """A module at work in a fork of the runner: as much of a ``subprocess.Popen`` as runs need.

    Attributes:
        pid: the process.
        stdout: its output, standard error included.
        returncode: its exit status, after :meth:`communicate`; None if it was killed.
    """

    def __init__(self, pid: int, output: int, status: int) -> None:
        self.pid = pid
        self.stdout = os.fdopen(output, encoding="utf-8", errors="replace")
        self.returncode: int | None = None
        self._status = os.fdopen(status)

    def communicate(self, timeout: float = PATIENCE_SECONDS) -> tuple[str, None]:
        """Return the rest of the output; a run that lasts longer than the timeout is killed."""
        timer = Timer(timeout, self.send_signal, [signal.SIGKILL])
        timer.start()
        with self.stdout, self._status:
            rest, ended = self.stdout.read(), self._status.read()
        timer.cancel()
        self.returncode = int(ended) if ended else None
        return rest, None

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)


class Runner:
    """The process that all runs are forks of."""

    def __init__(self) -> None:
        home = tempfile.mkdtemp(dir=os.environ["PYTEST_DEBUG_TEMPROOT"])
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.airflow_runner"],
                env=dag_runs.environment(Path(home)),
                stdin=other,
            )
        atexit.register(self._end)

    def start(self, environment: dict[str, str], program: str, *arguments: str) -> ForkedRun:
        """Run a module as a program."""
        request = {"program": program, "arguments": arguments, "environment": environment}
        ends = [os.pipe(), os.pipe()]
        try:
            socket.send_fds(self._socket, [json.dumps(request).encode()], [writing for _, writing in ends])
        finally:
            for _, writing in ends:
                os.close(writing)
        return ForkedRun(int(self._socket.recv(64)), *(reading for reading, _ in ends))

    def _end(self) -> None:
        self._socket.close()
        self._process.wait()


runner = cache(Runner)


@cache
def metadata() -> Path:
    """A metadata database with its tables: made once, and copied for each home."""
    return dag_runs.Airflow(Path(tempfile.mkdtemp(dir=os.environ["PYTEST_DEBUG_TEMPROOT"]))).metadata


class ForkingHome(dag_runs.AirflowHome):
    """A home whose runs are forks of the runner."""

    def start_file(self, file: Path, *arguments: str) -> ForkedRun:
        """Begin a run of a DAG of any file; the further arguments are those of ``run_dag.py``."""
        result = self._result_of(file.stem)
        program = "duewheel.testing.run_dag"
        return runner().start(self.environment, program, str(file), str(result), *arguments)


class AirflowHome(ForkingHome):
    """A home for Airflow with a metadata database, whose DAGs reach the broker at ``dsn``.

    Args:
        directory: an empty directory.
        dsn: the broker's database, for the connection ``duewheel_default``.
        variables: further environment variables.
    """

    def __init__(self, directory: Path, dsn: str, **variables: str) -> None:
        super().__init__(
            directory, metadata(), **{"AIRFLOW_CONN_DUEWHEEL_DEFAULT": connection_json(dsn), **variables}
        )


class Airflow(dag_runs.Airflow):
    """Makes a home for each run, and all runs forks of the runner."""

    home = ForkingHome

    @property
    def metadata(self) -> Path:
        """The metadata database of all homes."""
        return metadata()


@pytest.fixture(scope="session")
def duewheel_airflow(tmp_path_factory: pytest.TempPathFactory) -> Airflow:
    """Runs the DAGs of the fixture ``duewheel``, in place of an Airflow that is imported for each run."""
    return Airflow(tmp_path_factory.mktemp("duewheel-airflow"))
