"""Calls of Airflow's public REST API (v2).

The module uses `urllib`, so the command line needs no HTTP library. Proxies are never used, because the
demo's Airflow listens on the loopback interface only.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

# A limit that even a slow machine never reaches unless something is broken.
_TIMEOUT_SECONDS = 120.0
# As many as Airflow gives in one answer.
_PAGE = 100


class AirflowFailedError(Exception):
    """Airflow, a part of it or a run of a DAG failed. The message says where to look."""


class AirflowUnreachableError(AirflowFailedError):
    """Airflow does not answer at its address: it is not up yet, or no longer."""


class AirflowRefusedError(AirflowFailedError):
    """Airflow answered a request with an error; the message holds its status and words."""


class AirflowApi:
    """A client of one Airflow.

    Args:
        url: address of the API server, such as `http://127.0.0.1:8080`.
        user: name to log in with; not needed for `health`.
        password: its password.
    """

    def __init__(self, url: str, user: str = "", password: str = "") -> None:
        self._url = url
        self._login = {"username": user, "password": password}
        self._token: str | None = None
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def health(self) -> dict[str, str]:
        """Return the state of each part, such as `{"scheduler": "healthy", ...}`."""
        parts: dict[str, dict[str, str] | None] = self.call("GET", "/api/v2/monitor/health", log_in=False)
        return {name: str(part["status"]) for name, part in parts.items() if part}

    def warm_up(self) -> None:
        """Send a first request to the API that tasks use, because building that API at its first request
        takes seconds."""
        self.call("GET", "/execution/health", log_in=False)

    def dag_ids(self) -> set[str]:
        """Return the DAGs that have been parsed and stored."""
        return {dag["dag_id"] for dag in self.call("GET", f"/api/v2/dags?limit={_PAGE}")["dags"]}

    def import_errors(self) -> dict[str, str]:
        """Return file name -> stack trace of every DAG file that failed to import."""
        answer = self.call("GET", "/api/v2/importErrors")
        return {error["filename"]: error["stack_trace"] for error in answer["import_errors"]}

    def start_run(self, dag_id: str, parameters: Mapping[str, object]) -> str:
        """Start a run of the DAG with these parameters; return the run's id."""
        body = {"logical_date": None, "conf": dict(parameters)}
        return str(self.call("POST", f"/api/v2/dags/{dag_id}/dagRuns", body)["dag_run_id"])

    def run_state(self, dag_id: str, run_id: str) -> str:
        """Return `queued`, `running`, `success` or `failed`."""
        return str(self.call("GET", f"/api/v2/dags/{dag_id}/dagRuns/{run_id}")["state"])

    def run_states(self, dag_id: str, *, since: str) -> dict[str, int]:
        """Return how many of the DAG's runs since `since` (ISO 8601) are in each state."""
        query = urlencode({"run_after_gte": since, "order_by": "-run_after", "limit": _PAGE})
        runs = self.call("GET", f"/api/v2/dags/{dag_id}/dagRuns?{query}")["dag_runs"]
        return Counter(run["state"] for run in runs)

    def call(self, method: str, path: str, body: object = None, *, log_in: bool = True) -> Any:
        """Return the JSON that Airflow answers, None if it is empty.

        Raises:
            AirflowRefusedError: it answered with an error.
            AirflowUnreachableError: it did not answer.
        """
        status, text = self.answer(method, path, body, log_in=log_in)
        if status >= 400:
            raise AirflowRefusedError(f"{method} {path}: {status} {text.decode(errors='replace')}")
        return json.loads(text) if text else None

    def answer(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        headers: Mapping[str, str] | None = None,
        log_in: bool = True,
    ) -> tuple[int, bytes]:
        """Return the status and the content of any answer; a body is sent as JSON, and bytes as they are.

        Raises:
            AirflowUnreachableError: Airflow did not answer.
        """
        sent = {"Content-Type": "application/json", **(headers or {})}
        if log_in:
            sent["Authorization"] = f"Bearer {self._access_token()}"
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data=data, headers=sent, method=method)
        try:
            with self._opener.open(request, timeout=_TIMEOUT_SECONDS) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()
        except (urllib.error.URLError, OSError) as error:
            raise AirflowUnreachableError(f"no answer from Airflow at {self._url}: {error}") from error

    def _access_token(self) -> str:
        if self._token is None:
            self._token = str(self.call("POST", "/auth/token", self._login, log_in=False)["access_token"])
        return self._token
