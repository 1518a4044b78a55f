"""Requests that no page sends: whatever they have in them, the answer is an error that is stated (X19)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from tests.plugin.airflow_server import AirflowServer
from tests.plugin.route_rules import RULES, UNKNOWN_ID

from duewheel.store.broker import Broker

pytestmark = [pytest.mark.airflow, pytest.mark.slow]

DESCRIPTION = Path(__file__).parents[2] / "plugin" / "ui" / "openapi.json"
#: Unknown, empty, huge, negative, not numbers, not text, other zones and the ends of the calendar.
TEXTS = (
    "unknown", "", "x" * 10_000, "a\x00b", "%", "\U0001f600", "-1", "1e400", "9223372036854775808", "NaN",
    "Infinity", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59.999999-14:00", "2026-11-29T08:00:00",
    "f" * 44, UNKNOWN_ID,
    '{"at": "0001-01-01T00:00:00+14:00", "seq": 9999999999999999999, "topic": 999999999}',
    '{"at": "9999-99-99T99:99:99+99:99", "seq": 1, "topic": 1}',
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    "unknown", "", "x" * 10_000, "a\x00b", "9223372036854775808", "0001-01-01T00:00:00+14:00",
    "9999-12-31T23:59:59.999999-14:00", TEXTS[-1], None, -1, 10**30, 1e308, float("nan"), [], ["\x00"],
    {"\x00": "\x00"},
)  # fmt: skip


def described(method: str) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Each path that has a method, with its operation and the description of the API."""
    whole = json.loads(DESCRIPTION.read_text())
    for path, operations in whole["paths"].items():
        if method in operations:
            yield path, operations[method], whole


def placed(path: str, message_id: str = UNKNOWN_ID) -> str:
    """The address of a path of the description."""
    return "/duewheel" + path.format(connection_id="duewheel_default", message_id=message_id)


@pytest.fixture(scope="module")
def hostile(shop: Broker) -> Broker:
    """The broker, with what the rules of the routes name."""
    shop.create_topic("rights")
    for group in ("rights", "g"):
        shop.consumer("rights", group)
    return shop


def stated(status: int, answer: Any) -> bool:
    """Whether this is an answer, or an error in words."""
    return status == 200 or (400 <= status < 500 and isinstance(answer, dict) and bool(answer["detail"]))


def test_x19_no_value_in_an_address_is_an_error_of_the_server(
    airflow: AirflowServer, hostile: Broker
) -> None:
    wrong = []
    for path, operation, _ in described("get"):
        parameters = [one for one in operation.get("parameters", []) if one["in"] == "query"]
        needed = dict(pair.split("=") for pair in RULES["GET", path].query[1:].split("&") if pair)
        for name in (one["name"] for one in parameters):
            for text in TEXTS:
                query = urlencode({**needed, name: text})
                status, answer = airflow.call("GET", f"{placed(path)}?{query}", role="op")
                if not stated(status, answer):
                    wrong.append((path, name, text[:40], status, str(answer)[:80]))
        for text in TEXTS if "{" in path else ():
            quoted = quote(text, safe="")
            addresses = {placed(path, quoted), placed(path).replace("duewheel_default", quoted)}
            for address in addresses - {placed(path)}:
                status, answer = airflow.call("GET", f"{address}{RULES['GET', path].query}", role="op")
                if not stated(status, answer):
                    wrong.append((address[:80], "", text[:40], status, str(answer)[:80]))
    assert wrong == []


def test_x19_no_body_is_an_error_of_the_server(airflow: AirflowServer, hostile: Broker) -> None:
    wrong = []
    for path, operation, whole in described("post"):
        schema = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        fields = whole["components"]["schemas"][schema]["properties"]
        for name in fields:
            for value in VALUES:
                body = {**RULES["POST", path].body, name: value}
                status, answer = airflow.call("POST", placed(path), body, role="op")
                if not stated(status, answer):
                    wrong.append((path, name, str(value)[:40], status, str(answer)[:80]))
    assert wrong == []


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b"", "application/json"),
        (b"{", "application/json"),
        (b"\xff", "application/json"),
        (b"[" * 100_000, "application/json"),
        (b"1" * 5_000, "application/json"),
        (b"null", "application/json"),
        (b"[]", "application/json"),
        (b"group=g", "application/x-www-form-urlencoded"),
        (b"group=g", "text/plain"),
        (b"{}", ""),
    ],
)
def test_x19_a_body_that_is_not_understood_is_refused(
    airflow: AirflowServer, hostile: Broker, body: bytes, content_type: str
) -> None:
    for path, _, _ in described("post"):
        headers = {"Content-Type": content_type}
        status, answer = airflow.call("POST", placed(path), body, role="op", headers=headers)
        assert (path, stated(status, answer), status >= 400) == (path, True, True), answer
