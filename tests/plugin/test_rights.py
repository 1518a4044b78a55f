"""Who may call what: every route, as nobody and as each of Airflow's roles, on a real API server (X19)."""

from __future__ import annotations

from datetime import timedelta

import pytest
from fastapi.routing import APIRoute
from tests.plugin.airflow_server import ROLES, AirflowServer
from tests.plugin.route_rules import ACT, PUBLIC, READ, RULES, SEE, address
from tests.waiting import ask, connected

from duewheel.plugin.problems import unavailable
from duewheel.store.broker import Broker
from duewheel.store.values.errors import not_upgraded

pytestmark = [pytest.mark.airflow, pytest.mark.slow]

#: Who has which right, of the roles of Airflow's simple auth manager.
HOLDERS = {SEE: frozenset(ROLES), READ: frozenset({"op", "admin"}), ACT: frozenset({"op", "admin"})}


@pytest.fixture(scope="module")
def something(shop: Broker) -> str:
    """A topic with a group, a schedule and a message, whose id this is."""
    shop.create_topic("rights")
    shop.consumer("rights", "rights")
    shop.consumer("rights", "g")
    shop.create_schedule("rights", "rights", b"", every=timedelta(hours=1))
    body, properties = b'{"card": 4711}', {"holder": "Smith"}
    return shop.send("rights", body, delay=timedelta(hours=1), properties=properties).message_id


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
    airflow: AirflowServer, shop: Broker, something: str, method: str, path: str, role: str | None
) -> None:
    rule = RULES[method, path]
    shop.consumer("rights", "to-delete")
    status, answer = airflow.call(method, address(method, path, something), rule.body, role=role)
    if role is None:
        assert status == 401
    elif role in HOLDERS[rule.right]:
        assert status == rule.status, answer
    else:
        assert status == 403
        assert something not in str(answer)


@pytest.mark.parametrize(("role", "reads"), [(role, role in HOLDERS[READ]) for role in ROLES])
def test_x19_bodies_and_properties_need_the_connections_right(
    airflow: AirflowServer, something: str, role: str, reads: bool
) -> None:
    status, answer = airflow.call(
        "GET", f"/duewheel/api/brokers/duewheel_default/messages/{something}", role=role
    )
    assert status == 200
    assert [private in str(answer) for private in ("4711", "Smith")] == [reads, reads]


def test_x19_only_connections_of_our_type_are_listed_or_opened(airflow: AirflowServer) -> None:
    _, answer = airflow.call("GET", "/duewheel/api/brokers")
    assert [one["connection_id"] for one in answer["brokers"]] == [
        "duewheel_default",
        "moved",
        "night",
        "not_upgraded",
        "unreachable",
    ]
    status, answer = airflow.call("GET", "/duewheel/api/brokers/something_else/overview")
    assert (status, answer["error"]) == (404, "UnknownBroker")


def test_x19_another_site_changes_nothing(airflow: AirflowServer, something: str) -> None:
    path = "/duewheel/api/brokers/duewheel_default/messages/recall"
    status, answer = airflow.call(
        "POST", path, {"message_ids": [something]}, headers={"Sec-Fetch-Site": "cross-site"}
    )
    assert status == 403
    assert "Another site" in answer["detail"]


@pytest.mark.parametrize(
    ("broker", "error", "cure"),
    [
        ("moved", "BrokerMoved", "duewheel db rebase"),
        ("not_upgraded", "BrokerNotUpgraded", "There is no duewheel schema in this database, "),
        ("not_upgraded", "BrokerNotUpgraded", "duewheel db upgrade"),
    ],
)
def test_x08_a_broker_that_cannot_be_used_says_what_to_do(
    airflow: AirflowServer, broker: str, error: str, cure: str
) -> None:
    status, answer = airflow.call("GET", f"/duewheel/api/brokers/{broker}/overview", role="viewer")
    assert (status, answer["error"]) == (503, error)
    assert cure in answer["detail"]


def test_x08_an_older_schema_is_told_with_both_revisions() -> None:
    problem = unavailable(not_upgraded("0001", "0002"))
    assert problem is not None
    assert problem.detail == (
        "The schema is at revision 0001, this program needs revision 0002. Run `duewheel db upgrade` on it."
    )


def test_x08_a_locked_table_is_told_as_a_lock(airflow: AirflowServer, shop: Broker) -> None:
    with connected(shop.dsn) as connection:
        ask(connection, "begin")
        ask(connection, "lock table duewheel.schedule in access exclusive mode")
        status, answer = airflow.call("GET", "/duewheel/api/brokers/duewheel_default/schedules")
        assert (status, answer["error"]) == (503, "Locked")
        assert "lock on a table" in answer["detail"]
        # Another view does not wait for it.
        assert airflow.call("GET", "/duewheel/api/brokers/duewheel_default/topics")[0] == 200
    assert airflow.call("GET", "/duewheel/api/brokers/duewheel_default/schedules")[0] == 200


def test_x19_an_outage_leaks_neither_address_nor_login(airflow: AirflowServer) -> None:
    status, answer = airflow.call("GET", "/duewheel/api/brokers/unreachable/overview")
    assert (status, answer["error"]) == (503, "BrokerUnreachable")
    assert "secret" not in str(answer)
    assert "127.0.0.1" not in str(answer)


def test_x19_the_audit_log_has_acts_and_not_counts(airflow: AirflowServer, something: str) -> None:
    path = "/duewheel/api/brokers/duewheel_default/messages/recall-matching"
    for prefix, dry_run in (("counted-", True), ("done-", False)):
        asked = {"topic": "rights", "key_prefix": prefix, "dry_run": dry_run}
        assert airflow.call("POST", path, asked, role="op")[0] == 200
    _, logs = airflow.call("GET", "/api/v2/eventLogs?event=duewheel.recall_matching&order_by=-when")
    newest = logs["event_logs"][0]
    assert newest["owner"] == "op"
    assert "done-" in newest["extra"]
    assert "duewheel_default" in newest["extra"]
    assert "counted-" not in " ".join(line["extra"] for line in logs["event_logs"])
