"""What operators refuse when a DAG is read, before anything runs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from duewheel.operators.recall import RecallMessageOperator
from duewheel.operators.send import SendDelayMessageOperator
from duewheel.store.errors import InvalidArgument


@pytest.mark.parametrize(
    "when",
    [
        {"delay": timedelta(1), "delay_level": 3},
        {"delay": "PT1S", "deliver_at": "{{ ts }}"},
        {"deliver_at": 0, "delay_level": 0},
    ],
)
def test_two_times_of_delivery_are_refused(when: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match="Give one of delay, deliver_at and delay_level"):
        SendDelayMessageOperator(task_id="send", topic="t", body="x", **when)


@pytest.mark.parametrize(
    "names",
    [
        {},
        {"topic": "t"},
        {"key": "k"},
        {"message_id": "m", "topic": "t", "key": "k"},
        {"message_id": "m", "key": "k"},
    ],
)
def test_x02_a_recall_names_one_message(names: dict[str, str]) -> None:
    with pytest.raises(InvalidArgument, match="Give either message_id, or both topic and key"):
        RecallMessageOperator(task_id="recall", **names)
