"""A task that recalls a key with several messages."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from airflow.sdk.exceptions import AirflowFailException

from duewheel.operators.recall import RecallMessageOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

    from duewheel.store import Broker

pytestmark = pytest.mark.usefixtures("orders")


def test_x01_a_recall_of_a_key_counts_what_was_released(broker: Broker) -> None:
    pushed: list[dict[str, Any]] = []
    context = cast("Context", {"ti": SimpleNamespace(xcom_push=lambda **what: pushed.append(what))})
    for hours in (0, 1, 2):
        broker.send("orders", b"1", delay=timedelta(hours=hours), key="ladder")
    assert len(broker.consumer("orders", "g").receive(wait=timedelta(seconds=5))) == 1
    names = {"task_id": "recall", "topic": "orders", "key": "ladder"}
    assert RecallMessageOperator(**names).execute(context) == "already_released"
    assert pushed == [{"key": "counts", "value": {"recalled": 2, "already_released": 1}}]
    with pytest.raises(AirflowFailException, match=r"1 released before"):
        RecallMessageOperator(**names, fail_on_already_released=True).execute(context)
