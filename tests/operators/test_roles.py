"""The table of docs/how-to/production.md that says which role each part of Airflow needs."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException
from tests.airflow_runs import connection_json
from tests.logins import ROLES, login
from tests.operators.tasks import a_try

from duewheel.operators.consume import ConsumeMessagesOperator
from duewheel.operators.notifier import SendDelayMessageNotifier
from duewheel.operators.recall import RecallMessageOperator
from duewheel.operators.redrive import RedriveDeadLettersOperator
from duewheel.operators.reschedule import RescheduleMessageOperator
from duewheel.operators.send import SendDelayMessageOperator
from duewheel.operators.send_many import SendDelayMessagesOperator
from duewheel.operators.spark import SparkConsumeMessagesOperator
from duewheel.operators.topic import CreateTopicOperator
from duewheel.sensors.due_messages import DueMessagesSensor
from duewheel.store import Broker
from duewheel.store.values.errors import NotAllowed
from duewheel.triggers import wheel_stream

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "production.md"
HOUR = timedelta(hours=1)
CONTEXT = a_try()


def task(kind: Any, **arguments: Any) -> Callable[[], object]:
    return lambda: kind(task_id="task", **arguments).execute(CONTEXT)


def look() -> object:
    return DueMessagesSensor(task_id="task", topic="orders", group="g").poke(CONTEXT)


def turn() -> None:
    """As the triggerer finds out whether it may."""
    with wheel_stream.DueWheelHook().get_conn() as broker:
        if not broker.may_turn_wheel():
            raise NotAllowed("it needs the role duewheel_admin")


#: The parts that the table names, but for those that need no connection.
PARTS: dict[str, Callable[[], object]] = {
    "SendDelayMessageOperator": task(SendDelayMessageOperator, topic="orders", body="x", delay=HOUR),
    "SendDelayMessagesOperator": task(
        SendDelayMessagesOperator, topic="orders", messages=[{"body": "x"}], delay=HOUR
    ),
    "SendDelayMessageNotifier": lambda: SendDelayMessageNotifier(topic="orders", body="x", delay=HOUR).notify(
        CONTEXT
    ),
    "RecallMessageOperator": task(RecallMessageOperator, topic="orders", key="waits"),
    "RescheduleMessageOperator": task(RescheduleMessageOperator, topic="orders", key="moves", delay=HOUR),
    "ConsumeMessagesOperator": task(
        ConsumeMessagesOperator, topic="orders", group="g", python_callable=lambda messages: None
    ),
    "SparkConsumeMessagesOperator": task(
        SparkConsumeMessagesOperator, topic="orders", group="g", python_callable=lambda *_: None
    ),
    "DueMessagesSensor": look,
    "TimingWheelTrigger": turn,
    "CreateTopicOperator": task(CreateTopicOperator, topic="new"),
    "RedriveDeadLettersOperator": task(RedriveDeadLettersOperator, group="g"),
}


def listed() -> dict[str, str]:
    """The role of each part, as the page has it."""
    rows = re.findall(r"^\| (.*) \| `(duewheel_\w+)` \|", PAGE.read_text(), re.MULTILINE)
    return {part: role for parts, role in rows for part in re.findall(r"`([A-Z]\w+)`", parts)}


@pytest.mark.parametrize("role", ROLES)
def test_a_part_needs_the_role_that_the_page_gives_and_no_other(
    orders: Broker, role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.consumer("orders", "g").receive()
    for key in ("waits", "moves"):
        orders.send("orders", b"x", delay=HOUR, key=key)
    monkeypatch.setenv("AIRFLOW_CONN_DUEWHEEL_DEFAULT", connection_json(login(orders.dsn, role)))
    needed = listed()
    assert needed.keys() == PARTS.keys()
    for part, run in PARTS.items():
        if role in (needed[part], "duewheel_admin"):
            run()
        else:
            with pytest.raises((NotAllowed, AirflowFailException), match=needed[part]):
                run()
