"""A real API server of Airflow with users of each role, whose page shows the brokers it is given."""

from __future__ import annotations

import json
import secrets
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from tests.airflow_runs import AirflowHome, connection_json
from tests.waiting import until

from duewheel.cli.demo.airflow_api import AirflowApi, AirflowUnreachableError
from duewheel.cli.demo.processes import end, start
from duewheel.embedded.machine import free_port

#: Airflow's roles, each the name of the user who has it.
ROLES = ("viewer", "user", "op", "admin")
#: Airflow lies below this path, as behind a proxy that serves other things beside it.
PREFIX = "/shop"


@dataclass(frozen=True)
class AirflowServer:
    """The API server's address, and what its users log in with."""

    url: str
    password: str
    home: AirflowHome
    pid: int = 0

    def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        role: str | None = "admin",
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, Any]:
        """One request as the user of a role, or as nobody; its status and what it answered.

        A body is sent as JSON, and bytes as they are.
        """
        sent = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.url + path,
            data=sent,
            headers={"Content-Type": "application/json", **(headers or {})},
            method=method,
        )
        if role is not None:
            request.add_header("Authorization", f"Bearer {self._token(role)}")
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=60) as response:
                text = response.read()
                status: int = response.status
        except urllib.error.HTTPError as error:
            text, status = error.read(), error.code
        return status, _as_json(text)

    def _token(self, role: str) -> str:
        return _token(self.url, role, self.password)


@cache
def _token(url: str, role: str, password: str) -> str:
    """One login is good for all calls of a user."""
    return AirflowApi(url, role, password)._access_token()


def _as_json(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text.decode(errors="replace")


@contextmanager
def airflow_server(directory: Path, brokers: Mapping[str, str]) -> Iterator[AirflowServer]:
    """Start an API server and end it with the block.

    Args:
        directory: an empty directory.
        brokers: a connection id and a broker's address each; the first is ``duewheel_default``.
    """
    home = AirflowHome(directory, brokers["duewheel_default"])
    port = free_port()
    server = AirflowServer(f"http://127.0.0.1:{port}{PREFIX}", secrets.token_urlsafe(9), home)
    passwords = directory / "passwords.json"
    passwords.write_text(json.dumps(dict.fromkeys(ROLES, server.password)))
    environment = {
        **home.environment,
        **{f"AIRFLOW_CONN_{name.upper()}": connection_json(dsn) for name, dsn in brokers.items()},
        # A connection of another type is none of the page's business.
        "AIRFLOW_CONN_SOMETHING_ELSE": json.dumps({"conn_type": "postgres", "host": "h", "schema": "s"}),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{role}:{role}" for role in ROLES),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": server.url,
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__API__SECRET_KEY": secrets.token_hex(32),
        "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_hex(32),
        "NO_PROXY": "127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
    }
    log = directory / "api-server.log"
    child = start(
        "api-server", [sys.executable, "-m", "airflow", "api-server"], environment=environment, log=log
    )
    try:

        def answers() -> bool:
            assert child.process.poll() is None, f"the API server ended:\n{log.read_text()[-5_000:]}"
            return _answers(server.url)

        until(answers, "the API server to answer", pause_seconds=0.2)
        yield replace(server, pid=child.process.pid)
    finally:
        end([child], grace_seconds=5)


def _answers(url: str) -> bool:
    try:
        AirflowApi(url).health()
    except AirflowUnreachableError:
        return False
    return True
