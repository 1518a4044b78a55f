"""Who may call what: every route, as nobody and as each of Airflow's roles, on a real API server (X19)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from fastapi.routing import APIRoute
from tests.plugin.airflow_server import ROLES, AirflowServer

from duewheel.store.broker import Broker

pytestmark = [pytest.mark.airflow, pytest.mark.slow]

BROKER = "/api/brokers/{connection_id}"
UNKNOWN_ID = f"{1:08x}{0:04x}{0:016x}{1:016x}"
SEE = frozenset(ROLES)
#: Of Airflow's own roles; where roles can be composed these are two rights.
READ = ACT = frozenset({"op", "admin"})


@dataclass(frozen=True)
class Rule:
    """Who may call a route, with a body it takes."""

    roles: frozenset[str]
    body: Any = None
    query: str = ""


#: Every route of the application. One that is added without a rule fails the test below.
RULES = {
    ("GET", "/api/brokers"): Rule(SEE),
    ("GET", BROKER): Rule(SEE),
    ("GET", f"{BROKER}/overview"): Rule(SEE),
    ("GET", f"{BROKER}/topics"): Rule(SEE),
    ("GET", f"{BROKER}/groups"): Rule(SEE),
    ("GET", f"{BROKER}/leases"): Rule(SEE),
    ("GET", f"{BROKER}/retries"): Rule(SEE),
    ("GET", f"{BROKER}/dead-letters"): Rule(SEE, query="?group=g"),
    ("GET", f"{BROKER}/dead-letters/export"): Rule(READ, query="?group=g"),
    ("GET", f"{BROKER}/schedules"): Rule(SEE),
    ("GET", f"{BROKER}/messages"): Rule(SEE),
    ("GET", f"{BROKER}/messages/{{message_id}}"): Rule(SEE),
    ("GET", f"{BROKER}/task-messages"): Rule(
        SEE, query="?dag_id=d&run_id=r&task_id=t&topic=rights&group=rights"
    ),
    ("POST", f"{BROKER}/messages/recall"): Rule(ACT, {"message_ids": [UNKNOWN_ID]}),
    ("POST", f"{BROKER}/messages/reschedule"): Rule(ACT, {"message_ids": [UNKNOWN_ID], "delay_seconds": 1}),
    ("POST", f"{BROKER}/messages/recall-matching"): Rule(ACT, {"topic": "rights", "key_prefix": "none"}),
    ("POST", f"{BROKER}/dead-letters/redrive"): Rule(ACT, {"group": "rights"}),
    ("POST", f"{BROKER}/groups/rewind"): Rule(ACT, {"group": "rights", "topic": "rights", "to": "latest"}),
    ("POST", f"{BROKER}/schedules/pause"): Rule(ACT, {"name": "rights"}),
    ("POST", f"{BROKER}/schedules/resume"): Rule(ACT, {"name": "rights"}),
}
#: Code and pictures, as Airflow's own are.
PUBLIC = {("GET", "/static/main.js"), ("GET", "/static/{name}.svg")}


@pytest.fixture(scope="module")
def something(shop: Broker) -> str:
    """A topic with a group, a schedule and a message, whose id this is."""
    shop.create_topic("rights")
    shop.consumer("rights", "rights")
    shop.consumer("rights", "g")
    shop.add_schedule("rights", "rights", b"", every=timedelta(hours=1))
    return shop.send("rights", b'{"card": 4711}', delay=timedelta(hours=1)).message_id


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_x19_every_route_has_a_rule() -> None:
    from duewheel.plugin.app import application

    routes = {
        (method, route.path)
        for route in application().routes
        if isinstance(route, APIRoute)
        for method in route.methods
    }
    assert routes == RULES.keys() | PUBLIC
    assert len([one for one in application().routes if not isinstance(one, APIRoute)]) == 0


@pytest.mark.parametrize("role", [None, *ROLES])
@pytest.mark.parametrize(("method", "path"), list(RULES))
def test_x19_a_route_lets_in_whom_its_rule_names(
    airflow: AirflowServer, something: str, method: str, path: str, role: str | None
) -> None:
    rule = RULES[method, path]
    address = "/duewheel" + path.format(connection_id="duewheel_default", message_id=something) + rule.query
    status, answer = airflow.call(method, address, rule.body, role=role)
    if role is None:
        assert status == 401
    elif role in rule.roles:
        assert status == 200, answer
    else:
        assert status == 403
        assert something not in str(answer)


@pytest.mark.parametrize(("role", "reads"), [(role, role in ACT) for role in ROLES])
def test_x19_bodies_are_for_those_who_may_read_the_connection(
    airflow: AirflowServer, something: str, role: str, reads: bool
) -> None:
    status, answer = airflow.call(
        "GET", f"/duewheel/api/brokers/duewheel_default/messages/{something}", role=role
    )
    assert status == 200
    assert ("4711" in str(answer)) is reads


def test_x19_only_connections_of_our_type_are_listed_or_opened(airflow: AirflowServer) -> None:
    _, answer = airflow.call("GET", "/duewheel/api/brokers")
    assert [one["connection_id"] for one in answer["brokers"]] == ["duewheel_default", "unreachable"]
    status, answer = airflow.call("GET", "/duewheel/api/brokers/something_else/overview")
    assert (status, answer["error"]) == (404, "UnknownBroker")


def test_x19_another_site_changes_nothing(airflow: AirflowServer, something: str) -> None:
    path = "/duewheel/api/brokers/duewheel_default/messages/recall"
    status, answer = airflow.call(
        "POST", path, {"message_ids": [something]}, headers={"Sec-Fetch-Site": "cross-site"}
    )
    assert status == 403
    assert "Another site" in answer["detail"]


def test_x19_an_outage_leaks_neither_address_nor_login(airflow: AirflowServer) -> None:
    status, answer = airflow.call("GET", "/duewheel/api/brokers/unreachable/overview")
    assert (status, answer["error"]) == (503, "BrokerUnreachable")
    assert "secret" not in str(answer)
    assert "127.0.0.1" not in str(answer)


def test_x19_what_is_done_stands_in_the_audit_log(airflow: AirflowServer, something: str) -> None:
    path = "/duewheel/api/brokers/duewheel_default/messages/recall-matching"
    airflow.call("POST", path, {"topic": "rights", "key_prefix": "audited-"}, role="op")
    _, logs = airflow.call("GET", "/api/v2/eventLogs?event=duewheel.recall_matching&order_by=-when")
    newest = logs["event_logs"][0]
    assert newest["owner"] == "op"
    assert "audited-" in newest["extra"]
    assert "duewheel_default" in newest["extra"]
