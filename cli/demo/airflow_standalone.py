"""A real Airflow for the demo, the tests and the benchmarks: its parts as child processes.

The parts are the API server, the scheduler, the triggerer and the DAG processor. This is `airflow standalone`
with four differences: the caller names the metadata database, every address is a free port on the loopback
interface, the settings suit a small machine, and nothing of the caller's own Airflow (home folder, settings,
connections) is read or touched.

Task logs are files in AIRFLOW_HOME that the API server reads itself, so the two log servers, which would
listen on all interfaces, are not started.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Self

from duewheel.cli.demo.airflow_api import AirflowApi, AirflowUnreachableError
from duewheel.cli.demo.processes import Child, end, start
from duewheel.embedded.machine import free_port
from duewheel.testing.connections import connection_json

USER = "admin"
_COMPONENTS: dict[str, tuple[str, ...]] = {
    "api-server": ("api-server",),
    "scheduler": ("scheduler", "--skip-serve-logs"),
    "triggerer": ("triggerer", "--skip-serve-logs"),
    "dag-processor": ("dag-processor",),
}
_HEALTH_OF: dict[str, str] = {
    "scheduler": "scheduler",
    "triggerer": "triggerer",
    "dag-processor": "dag_processor",
}
_POLL_SECONDS = 0.2
_STOP_GRACE_SECONDS = 6.0
#: However busy the machine is, what takes this long does not come.
_PATIENCE_SECONDS = 600.0


class AirflowFailedError(Exception):
    """A part of Airflow did not start, or ended while it was needed. The message names its log."""


@dataclass(frozen=True)
class Settings:
    """The settings of this Airflow.

    Attributes:
        home: its home folder.
        database_dsn: its metadata database.
        dags_folder: where its DAGs are.
        broker_dsn: the database of the connection `duewheel_default`.
        users: who may log in, each with a role of Airflow.
        path: below which the API server answers, as behind a proxy.
        variables: environment variables that differ from those of `environment`.
        port: the API server's.
        password: every user's.
    """

    home: Path
    database_dsn: str
    dags_folder: Path
    broker_dsn: str
    users: Mapping[str, str] = field(default_factory=lambda: {USER: "admin"})
    path: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    password: str = field(default_factory=lambda: secrets.token_urlsafe(9))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{self.path}"

    def environment(self) -> dict[str, str]:
        """Return the whole environment of the parts, as AIRFLOW__SECTION__NAME variables."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW_")}
        return inherited | {
            "AIRFLOW_HOME": str(self.home),
            "AIRFLOW_CONN_DUEWHEEL_DEFAULT": connection_json(self.broker_dsn),
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": self.database_dsn,
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.dags_folder),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(
                f"{name}:{role}" for name, role in self.users.items()
            ),
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(self._passwords_file),
            # The machine's own name may not resolve, or slowly; every component is on this machine.
            "AIRFLOW__CORE__HOSTNAME_CALLABLE": "socket.gethostname",
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": str(self.port),
            "AIRFLOW__API__BASE_URL": self.url,
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__API__SECRET_KEY": secrets.token_hex(32),
            "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_hex(32),
            # Four files to parse that do not change: one parser, now and then.
            "AIRFLOW__DAG_PROCESSOR__PARSING_PROCESSES": "1",
            "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "600",
            # On a busy machine a file may take longer than the 30 seconds it has otherwise, and would not be
            # looked at again before the interval is over.
            "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "300",
            "AIRFLOW__DAG_PROCESSOR__DAG_FILE_PROCESSOR_TIMEOUT": "300",
            # The same holds for the API server, which otherwise has 5 seconds.
            "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",
            # After a crash, tasks of the scheduler that died are taken up again soon.
            "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "20",
            # One worker per DAG that can run at a time, and one spare.
            "AIRFLOW__CORE__PARALLELISM": "4",
            # A loopback address must not go through a proxy.
            "NO_PROXY": "127.0.0.1,localhost",
            "no_proxy": "127.0.0.1,localhost",
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            # A job of seconds never earns back what the second compiler and a parallel collector cost.
            "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            **self.variables,
        }

    def write_login(self) -> None:
        """Give the users their password, before Airflow would make one up."""
        self._passwords_file.touch(mode=0o600)
        self._passwords_file.write_text(
            json.dumps(dict.fromkeys(self.users, self.password)), encoding="utf-8"
        )

    @property
    def _passwords_file(self) -> Path:
        return self.home / "passwords.json"


class AirflowStandalone:
    """The parts: `migrate`, `start`, wait until `unhealthy` is empty, and always `stop`.

    `bring_up` does the first three, and the end of a `with` block the last.

    Args:
        settings: where it lives.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._environment = settings.environment()
        self._children: list[Child] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @cached_property
    def api(self) -> AirflowApi:
        """Its API, for the first user."""
        return AirflowApi(self.settings.url, next(iter(self.settings.users)), self.settings.password)

    @property
    def sessions(self) -> dict[str, tuple[int, float]]:
        """Session id and start (seconds since the epoch) of each part, by its name."""
        return {child.name: (child.process.pid, child.started_at) for child in self._children}

    def migrate(self, stopping: threading.Event) -> None:
        """Make or upgrade the metadata tables; return early when `stopping` is set.

        Raises:
            AirflowFailedError: the command failed; the message names its log.
        """
        migration = self._start("db-migrate", ("db", "migrate"))
        while (code := migration.process.poll()) is None and not stopping.wait(_POLL_SECONDS):
            pass
        if code is None:
            return
        # The process has ended, and its id may soon belong to another process.
        self._children.remove(migration)
        if code:
            raise AirflowFailedError(
                f"Airflow's tables could not be made (status {code}); see {migration.log}"
            )

    def start(self, parts: Iterable[str] = tuple(_COMPONENTS)) -> None:
        """Start the parts, the API server first because it takes longest."""
        self.settings.write_login()
        for name in parts:
            self._start(name, _COMPONENTS[name])

    def bring_up(self, dag_ids: Iterable[str] = ()) -> None:
        """Make the tables, start all parts, and return when they are healthy and have read the DAGs.

        Raises:
            AirflowFailedError: a part failed, or did not start in time.
        """
        self.migrate(threading.Event())
        self.start()
        self.wait_for(lambda: not self.unhealthy(), "Airflow")
        self.wait_for(lambda: all(self.api.knows_dag(dag_id) for dag_id in dag_ids), "the DAGs")

    def wait_for(self, is_there: Callable[[], bool], what: str) -> None:
        """Return when `is_there()`.

        Raises:
            AirflowFailedError: a part ended meanwhile, or `what` was not there in time.
        """
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not is_there():
            self.check()
            if time.monotonic() > deadline:
                raise AirflowFailedError(
                    f"{what} did not come within {_PATIENCE_SECONDS:.0f} s; see {self.settings.home}"
                )
            # Airflow signals no change.
            time.sleep(_POLL_SECONDS)

    def unhealthy(self) -> list[str]:
        """Return the started parts that do not answer, or whose heartbeat Airflow does not report yet."""
        started = {child.name for child in self._children}
        api = AirflowApi(self.settings.url)
        try:
            health = api.health()
            api.warm_up()
        except AirflowUnreachableError:
            return [name for name in _COMPONENTS if name in started]
        return [name for name, key in _HEALTH_OF.items() if name in started and health.get(key) != "healthy"]

    def check(self) -> None:
        """Raise AirflowFailedError if a part has ended by itself."""
        for child in self._children:
            if child.name in _COMPONENTS and (code := child.process.poll()) is not None:
                raise AirflowFailedError(f"Airflow's {child.name} ended with status {code}; see {child.log}")

    def stop(self) -> None:
        """End the parts and whatever they started: workers, tasks, Spark."""
        end(self._children, grace_seconds=_STOP_GRACE_SECONDS)
        self._children.clear()

    def _start(self, name: str, arguments: Sequence[str]) -> Child:
        command = [sys.executable, "-m", "airflow", *arguments]
        child = start(name, command, environment=self._environment, log=self.settings.home / f"{name}.log")
        self._children.append(child)
        return child
