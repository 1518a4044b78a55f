"""The numbers in the asset events of a task that sends."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk import Asset
from tests.operators.tasks import a_try

from duewheel.operators.send import SendDelayMessageOperator
from duewheel.operators.send_many import SendDelayMessagesOperator

if TYPE_CHECKING:
    from duewheel.store import Broker

ASSET = Asset("duewheel://duewheel_default/orders")
HOUR = timedelta(hours=1)


pytestmark = pytest.mark.usefixtures("orders")


def told(operator: Any) -> int:
    """How many messages the event of a run says."""
    event = SimpleNamespace(extra={})
    operator.execute(a_try(task_id=operator.task_id, outlet_events={ASSET: event}))
    messages: int = event.extra["messages"]
    return messages


@pytest.mark.parametrize(("on_conflict", "counted"), [("allow", 1), ("replace", 1), ("keep", 0)])
def test_an_event_counts_new_messages(broker: Broker, on_conflict: str, counted: int) -> None:
    broker.send("orders", b"x", delay=HOUR, key="4711")
    message: dict[str, Any] = {"body": "y", "key": "4711", "on_conflict": on_conflict}
    one = SendDelayMessageOperator(task_id="one", topic="orders", outlets=[ASSET], delay=HOUR, **message)
    many = SendDelayMessagesOperator(
        task_id="many", topic="orders", outlets=[ASSET], delay=HOUR, messages=[message]
    )
    assert [told(one), told(many)] == [counted] * 2
    # The second try finds what the first one sent.
    assert told(many) == 0
