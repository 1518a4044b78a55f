"""The runs that wait for an answer, and the early answers, on a real API server (X26)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from tests.plugin.airflow_server import AirflowServer
from tests.waiting import until

from duewheel.store.broker import Broker

pytestmark = [pytest.mark.airflow, pytest.mark.slow]

BROKER = "/duewheel/api/brokers/duewheel_default"
WAITS = """
from airflow.sdk import DAG
from duewheel.operators.wait import WaitForAnswerOperator

with DAG("page_waits"):
    WaitForAnswerOperator(task_id="approval", topic="page.approvals", key="order-7", timeout="PT2H")
"""


def listed(airflow: AirflowServer, path: str, role: str = "viewer") -> dict[str, Any]:
    """The answer to a list."""
    status, answer = airflow.call("GET", f"{BROKER}/{path}", role=role)
    assert status == 200, answer
    found: dict[str, Any] = answer
    return found


def test_x26_a_run_that_waits_is_listed_until_it_is_answered(airflow: AirflowServer, shop: Broker) -> None:
    shop.create_topic("page.approvals")
    file = airflow.home.dags / "page_waits.py"
    file.write_text(WAITS)
    run = airflow.home.start("page_waits")
    until(lambda: listed(airflow, "waiting-runs")["runs"], "the run to wait")
    (one,) = listed(airflow, "waiting-runs")["runs"]
    assert (one["topic"], one["key"]) == ("page.approvals", "order-7")
    assert one["task"].startswith("airflow:page_waits/")
    assert one["task"].endswith("/approval/-1")
    # Moved to another instant: it is listed with the id that it has now.
    moved = shop.reschedule(one["message_id"], delay=timedelta(hours=5))
    (one,) = listed(airflow, "waiting-runs")["runs"]
    assert one["message_id"] == moved.message_id
    assert listed(airflow, "waiting-runs")["more"] is False
    asked = {"message_id": one["message_id"], "body": '"yes"'}
    assert airflow.call("POST", f"{BROKER}/messages/answer", asked, role="op")[1]["outcome"] == "answered"
    assert listed(airflow, "waiting-runs")["runs"] == []
    assert airflow.home.finish("page_waits", run).state == "success"


def test_x26_an_early_answer_is_listed_and_withdrawn(airflow: AirflowServer, shop: Broker) -> None:
    shop.create_topic("page.early")
    shop.answer_key("page.early", "order-8", {"secret": 4711}, early=True)
    (one,) = listed(airflow, "early-answers", "op")["answers"]
    assert (one["topic"], one["key"], one["answer"]) == ("page.early", "order-8", {"secret": 4711})
    seen = listed(airflow, "early-answers")
    assert (seen["may_read"], seen["answers"][0]["answer"]) == (False, None)
    asked = {"topic": "page.early", "key": "order-8"}
    for withdrawn in (True, False):
        said = airflow.call("POST", f"{BROKER}/early-answers/withdraw", asked, role="op")
        assert (said[0], said[1]["withdrawn"]) == (200, withdrawn)
    assert listed(airflow, "early-answers")["answers"] == []
    _, logs = airflow.call("GET", "/api/v2/eventLogs?event=duewheel.withdraw_early_answer")
    assert any("order-8" in log["extra"] for log in logs["event_logs"])
