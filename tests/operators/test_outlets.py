"""The numbers in the asset events of a task that sends."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from airflow.sdk import Asset, Context
from tests.airflow_runs import connection_json

from duewheel.operators.send import SendDelayMessageOperator
from duewheel.operators.send_many import SendDelayMessagesOperator

if TYPE_CHECKING:
    from duewheel.store import Broker

ASSET = Asset("duewheel://duewheel_default/orders")
HOUR = timedelta(hours=1)


@pytest.fixture(autouse=True)
def connection(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection that the operators use by default, and a topic."""
    monkeypatch.setenv("AIRFLOW_CONN_DUEWHEEL_DEFAULT", connection_json(broker.dsn))
    broker.create_topic("orders")


def told(operator: Any) -> int:
    """How many messages the event of a run says."""
    event = SimpleNamespace(extra={})
    task_instance = SimpleNamespace(
        dag_id="dag", run_id="run", task_id=operator.task_id, map_index=-1, xcom_push=lambda **_: None
    )
    operator.execute(cast("Context", {"ti": task_instance, "outlet_events": {ASSET: event}}))
    messages: int = event.extra["messages"]
    return messages


@pytest.mark.parametrize(("on_conflict", "counted"), [("allow", 1), ("replace", 1), ("keep", 0)])
def test_an_event_counts_what_is_new(broker: Broker, on_conflict: str, counted: int) -> None:
    broker.send("orders", b"x", delay=HOUR, key="4711")
    message: dict[str, Any] = {"body": "y", "key": "4711", "on_conflict": on_conflict}
    one = SendDelayMessageOperator(task_id="one", topic="orders", outlets=[ASSET], delay=HOUR, **message)
    many = SendDelayMessagesOperator(
        task_id="many", topic="orders", outlets=[ASSET], delay=HOUR, messages=[message]
    )
    assert [told(one), told(many)] == [counted] * 2
    # The second try finds what the first one sent.
    assert told(many) == 0
