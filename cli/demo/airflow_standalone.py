"""`airflow standalone` for the demo and the benchmarks: a whole Airflow as one child process.

The caller names the metadata database, every port is a free one, the settings suit a small machine, and
nothing of the caller's own Airflow (home folder, settings, connections) is read or touched.

Airflow starts its parts, and two servers of logs that answer signed requests only. It does not notice when
a part ends; `check` does.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Self

import psutil

from duewheel.cli.demo.airflow_api import AirflowApi, AirflowFailedError, AirflowUnreachableError
from duewheel.embedded.machine import free_port
from duewheel.testing.connections import connection_json

USER = "admin"
#: The parts of Airflow that `airflow standalone` starts, by the subcommand of each.
PARTS = ("api-server", "scheduler", "triggerer", "dag-processor")
_POLL_SECONDS = 0.2
#: However busy the machine is, an event that takes this long does not happen.
_PATIENCE_SECONDS = 600.0


@dataclass(frozen=True)
class Settings:
    """The settings of this Airflow.

    Attributes:
        home: its home folder.
        database_dsn: its metadata database.
        dags_folder: where its DAGs are.
        broker_dsn: the database of the connection `duewheel_default`.
        users: who may log in, each with a role of Airflow.
        path: the path below which the API server answers, as through a proxy.
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
            # `airflow standalone` starts its parts by the name `airflow`.
            "PATH": os.pathsep.join([str(self._programs), inherited.get("PATH", os.defpath)]),
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
            # On a busy machine a file may take longer than the default 30 seconds, and would not be read
            # again before the interval has passed.
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
        self._passwords_file.write_text(json.dumps(dict.fromkeys(self.users, self.password)))

    def write_program(self) -> None:
        """Write the program `airflow`, whose parts serve no logs: log servers listen on all interfaces."""
        self._programs.mkdir(exist_ok=True)
        program = self._programs / "airflow"
        program.write_text(
            "#!/bin/sh\n"
            'case $1 in scheduler | triggerer) set -- "$@" --skip-serve-logs ;; esac\n'
            f'exec {shlex.quote(sys.executable)} -m airflow "$@"\n'
        )
        program.chmod(0o700)

    @property
    def _programs(self) -> Path:
        return self.home / "bin"

    @property
    def _passwords_file(self) -> Path:
        return self.home / "passwords.json"


class AirflowStandalone:
    """One Airflow: `start` it, wait until `unhealthy` is empty, and always `stop` it.

    `bring_up` does the first two, and the end of a `with` block the last.

    Args:
        settings: its settings.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.log = settings.home / "standalone.log"
        self._environment = settings.environment()
        self._keeper: subprocess.Popen[bytes] | None = None
        self._parts: dict[str, psutil.Process] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @cached_property
    def api(self) -> AirflowApi:
        """Its API, for the first user."""
        return AirflowApi(self.settings.url, next(iter(self.settings.users)), self.settings.password)

    def start(self) -> None:
        """Start `airflow standalone`, which ends with this process."""
        self.settings.write_login()
        self.settings.write_program()
        keeper = [sys.executable, "-m", "duewheel.cli.demo.keeper"]
        with self.log.open("ab") as log:
            self._keeper = subprocess.Popen(
                [*keeper, sys.executable, "-m", "airflow", "standalone"],
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def bring_up(self, dag_ids: Collection[str] = ()) -> None:
        """Start, and return when all parts are healthy and have read the DAGs.

        Raises:
            AirflowFailedError: a part failed or did not start in time, or a DAG file does not import.
        """
        self.start()
        self.wait_for(lambda: not self.unhealthy(), "Airflow")
        self.wait_for(lambda: self._has_read(set(dag_ids)), "the DAGs")

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
                    f"{what} did not happen within {_PATIENCE_SECONDS:.0f} s; see {self.settings.home}"
                )
            # Airflow signals no change.
            time.sleep(_POLL_SECONDS)

    def unhealthy(self) -> list[str]:
        """Return the parts that do not answer, or whose heartbeat Airflow does not report yet."""
        try:
            # The API server is healthy once it answers.
            health = {"api_server": "healthy"} | self.api.health()
            self.api.warm_up()
        except AirflowUnreachableError:
            return list(PARTS)
        return [part for part in PARTS if health.get(part.replace("-", "_")) != "healthy"]

    def parts(self) -> dict[str, psutil.Process]:
        """Return the processes of the parts, by the subcommand of each."""
        with suppress(psutil.NoSuchProcess):  # it is starting or ending
            for standalone in psutil.Process(self._keeper.pid).children() if self._keeper else ():
                for process in standalone.children():
                    title = " ".join(process.cmdline()).replace("_", "-")
                    self._parts |= {part: process for part in PARTS if f"airflow {part}" in title}
        return self._parts

    def check(self) -> None:
        """Raise AirflowFailedError if Airflow or a part of it has ended unasked."""
        if self._keeper is not None and (code := self._keeper.poll()) is not None:
            raise AirflowFailedError(f"Airflow ended with status {code}; see {self.log}")
        for part, process in self.parts().items():
            if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
                raise AirflowFailedError(f"Airflow's {part} ended; see {self.log}")

    def stop(self) -> None:
        """End the parts and whatever they started: workers, tasks, Spark."""
        if self._keeper is not None:
            self._keeper.communicate()

    def _has_read(self, dag_ids: set[str]) -> bool:
        if dag_ids <= self.api.dag_ids():
            return True
        for name, trace in self.api.import_errors().items():
            raise AirflowFailedError(f"DAG file {name} does not import:\n{trace}")
        return False
