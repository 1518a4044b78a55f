"""The page's rights given by role with the FAB provider's auth manager, by real logins (X19)."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.airflow_runs import AirflowHome
from tests.plugin.route_rules import ACT, READ, RULES, SEE, address

from duewheel.store.broker import Broker

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.long]

PROGRAM = Path(__file__).with_name("fab_calls.py")
ASSETS = ("can_read", "Assets")
#: What Airflow's own pages ask for before they list the page in their navigation.
NAVIGATION = ("can_read", "Plugins")
PLUGINS = ("GET", "/api/v2/plugins", None)
#: Roles as the documentation composes them; what none is told of is a role that FAB brings along.
ROLES: dict[str, list[tuple[str, str]] | None] = {
    "Delays: see": [ASSETS, NAVIGATION],
    "Delays: read": [ASSETS, ("can_read", "Connections")],
    "Delays: act": [ASSETS, ("can_edit", "Connections")],
    "Delays: nothing": [("can_read", "DAGs"), ("can_read", "Connections"), ("can_edit", "Connections")],
    "Viewer": None,
    "Op": None,
    "Admin": None,
}
HOLDERS = {
    SEE: {"Delays: see", "Delays: read", "Delays: act", "Viewer", "Op", "Admin"},
    READ: {"Delays: read", "Op", "Admin"},
    ACT: {"Delays: act", "Op", "Admin"},
}
#: No number: a port or a fraction of a second in an answer would look like it.
CARD = "the card of a customer"


@pytest.fixture(scope="module")
def answers(shop: Broker, shop_dsn: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What each route and the message answered each user."""
    shop.create_topic("rights")
    shop.consumer("rights", "rights")
    shop.consumer("rights", "g")
    if not any(one.name == "rights" for one in shop.schedules()):
        shop.create_schedule("rights", "rights", b"", every=timedelta(hours=1))
    message_id = shop.send("rights", {"card": CARD}, delay=timedelta(hours=1)).message_id
    calls = [(method, address(method, path, message_id), rule.body) for (method, path), rule in RULES.items()]
    calls_of = {}
    for n, role in enumerate([*ROLES, "nobody"]):
        shop.consumer("rights", f"to-delete-{n}")
        calls_of[role] = json.loads(json.dumps([*calls, PLUGINS]).replace("to-delete", f"to-delete-{n}"))
    directory = tmp_path_factory.mktemp("fab")
    home = AirflowHome(
        directory,
        shop_dsn,
        AIRFLOW__CORE__AUTH_MANAGER="airflow.providers.fab.auth_manager.fab_auth_manager.FabAuthManager",
        AIRFLOW__API__SECRET_KEY=secrets.token_hex(32),
        AIRFLOW__API_AUTH__JWT_SECRET=secrets.token_hex(32),
    )
    question, answer = directory / "question.json", directory / "answer.json"
    question.write_text(json.dumps({"roles": ROLES, "calls": calls_of}))
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(question), str(answer)],
        env=home.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5_000:]
    said: dict[str, Any] = json.loads(answer.read_text())
    return said


@pytest.mark.parametrize("role", [*ROLES, "nobody"])
def test_x19_a_role_of_fab_can_do_what_it_was_given(answers: dict[str, Any], role: str) -> None:
    expected = {
        call: 401 if role == "nobody" else rule.status if role in HOLDERS[rule.right] else 403
        for call, rule in RULES.items()
    }
    *answered, _ = answers[role]
    statuses = dict(zip(RULES, (status for status, _ in answered), strict=True))
    assert statuses == expected


@pytest.mark.parametrize("role", [*ROLES, "nobody"])
def test_x19_a_role_of_fab_reads_bodies_only_where_it_may(answers: dict[str, Any], role: str) -> None:
    assert (CARD in str(answers[role])) is (role in HOLDERS[READ])


def test_x19_a_fab_role_that_may_read_plugins_finds_the_page(
    answers: dict[str, Any],
) -> None:
    status, text = answers["Delays: see"][-1]
    assert status == 200
    assert '"url_route":"duewheel"' in text
    assert answers["Delays: read"][-1][0] == 403


def test_x19_a_wrong_password_is_no_login(answers: dict[str, Any]) -> None:
    assert answers["wrong password"] == 401
