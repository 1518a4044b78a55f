"""A real API server of Airflow with users of each role, whose page shows the brokers it is given."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.airflow_parts import AirflowParts
from tests.airflow_runs import AirflowHome, connection_json

from duewheel.cli.demo.airflow_api import AirflowApi
from duewheel.cli.demo.airflow_standalone import Settings
from duewheel.embedded.machine import free_port

#: Airflow's roles, each the name of the user who has it.
ROLES = ("viewer", "user", "op", "admin")
#: Airflow lies below this path, as behind a proxy that serves other things beside it.
PREFIX = "/shop"
#: What it signs logins with.
_KEYS = ("AIRFLOW__API__SECRET_KEY", "AIRFLOW__API_AUTH__JWT_SECRET")


class AirflowServer(AirflowParts):
    """The API server alone.

    Attributes:
        url: its address.
        password: what its users log in with.
        home: its home folder, for runs of DAGs that it knows.
    """

    def __init__(self, settings: Settings, home: AirflowHome) -> None:
        super().__init__(settings)
        self.url, self.password, self.home = settings.url, settings.password, home
        self._users = {role: AirflowApi(settings.url, role, settings.password) for role in ROLES}

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.started[0].process.pid

    def another(self) -> AirflowServer:
        """Another process of this API server, not started, with its own port and the same keys and tables."""
        keys = {name: self._environment[name] for name in _KEYS}
        settings = replace(self.settings, port=free_port(), variables={**self.settings.variables, **keys})
        return AirflowServer(settings, self.home)

    def start(self) -> None:
        """Start it, with the metadata tables that its home has."""
        self.settings.write_login()
        self.start_part("api-server")

    def wait_until_healthy(self) -> None:
        """Return when it answers."""
        self.wait_for(lambda: "api-server" not in self.unhealthy(), "its API server")

    def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        role: str | None = "admin",
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, Any]:
        """One request as the user of a role, or as nobody; its status and what it answered."""
        api = self._users[role or "viewer"]
        status, text = api.answer(method, path, body, headers=headers, log_in=role is not None)
        try:
            return status, json.loads(text)
        except ValueError:
            return status, text.decode(errors="replace")


@contextmanager
def airflow_server(directory: Path, brokers: Mapping[str, str]) -> Iterator[AirflowServer]:
    """Start an API server and end it with the block.

    Args:
        directory: an empty directory.
        brokers: a connection id and a broker's address each; the first is ``duewheel_default``.
    """
    home = AirflowHome(directory, brokers["duewheel_default"])
    settings = Settings(
        home=directory,
        database_dsn=f"sqlite:///{directory / 'airflow.db'}",
        dags_folder=home.dags,
        broker_dsn=brokers["duewheel_default"],
        users={role: role for role in ROLES},
        path=PREFIX,
        variables={
            **{f"AIRFLOW_CONN_{name.upper()}": connection_json(dsn) for name, dsn in brokers.items()},
            # A connection of another type is none of the page's business.
            "AIRFLOW_CONN_SOMETHING_ELSE": json.dumps({"conn_type": "postgres", "host": "h", "schema": "s"}),
        },
    )
    with AirflowServer(settings, home) as server:
        server.start()
        server.wait_until_healthy()
        yield server
