"""Mapped operators are checked when the DAG is read, as far as their arguments are known."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk import DAG, task

from duewheel.operators.consume import ConsumeMessagesOperator
from duewheel.operators.recall import RecallMessageOperator
from duewheel.operators.redrive import RedriveDeadLettersOperator
from duewheel.operators.reschedule import RescheduleMessageOperator
from duewheel.operators.send import SendDelayMessageOperator
from duewheel.operators.send_many import SendDelayMessagesOperator
from duewheel.operators.spark import SparkConsumeMessagesOperator
from duewheel.operators.topic import CreateTopicOperator
from duewheel.operators.wait import WaitForAnswerOperator
from duewheel.sensors.due_messages import DueMessagesSensor
from duewheel.store.values.errors import DueWheelError, InvalidArgument


@pytest.fixture(autouse=True)
def dag() -> Iterator[DAG]:
    with DAG("mapped") as dag:
        yield dag


@task
def earlier() -> list[str]:
    return []


OPERATORS = [
    ConsumeMessagesOperator,
    CreateTopicOperator,
    DueMessagesSensor,
    RecallMessageOperator,
    RedriveDeadLettersOperator,
    RescheduleMessageOperator,
    SendDelayMessageOperator,
    SendDelayMessagesOperator,
    SparkConsumeMessagesOperator,
    WaitForAnswerOperator,
]


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda each: each.__name__)
def test_a_known_name_is_checked_before_the_rest_is_known(operator: Any) -> None:
    with pytest.raises(InvalidArgument, match="my topic"):
        operator.partial(task_id="t", topic="my topic").expand_kwargs(earlier())


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: SendDelayMessageOperator.partial(
                task_id="t", topic="t", delay=timedelta(seconds=-1)
            ).expand(body=["a"]),
            "delay must be 0 s or more; got -1 s",
        ),
        (
            lambda: SendDelayMessageOperator.partial(task_id="t", topic="t").expand(
                body=["a"], key=["one", "two", ""]
            ),
            "the key must have 1 to 255 characters; got 0",
        ),
        (
            lambda: SendDelayMessageOperator.partial(task_id="t", topic="t").expand_kwargs(
                [{"body": "a"}, {"body": "a", "delay": "PT1S", "deliver_at": "{{ ts }}"}]
            ),
            "Give one of delay",
        ),
        (
            lambda: ConsumeMessagesOperator.partial(task_id="t", python_callable=len, topic="t").expand(
                group=["g", "a group"]
            ),
            "a group",
        ),
        (
            lambda: DueMessagesSensor.partial(task_id="t", topic="t", retries=2).expand(group={"a b": "c"}),
            "group is a tuple",
        ),
        (
            lambda: DueMessagesSensor.partial(task_id="t", topic="t", invisible="PT1S").expand(group=["g"]),
            "invisible is for messages that are handed on",
        ),
    ],
)
def test_a_mistake_that_is_known_is_refused(make: Callable[[], object], said: str) -> None:
    with pytest.raises(DueWheelError, match=said):
        make()


def test_a_mapped_operator_is_made_once(dag: DAG) -> None:
    SendDelayMessageOperator.partial(task_id="send", topic="t").expand(
        body=["a", "b"], key=earlier(), delay=["{{ params.delay }}"]
    )
    # How many are handed on is not templated, so only a run can tell whether the lease is in order.
    DueMessagesSensor.partial(task_id="wait", topic="t", group="g", invisible="PT1S").expand(
        hand_on=earlier(), poke_interval=earlier()
    )
    RecallMessageOperator.partial(task_id="recall").expand_kwargs(earlier())
    mapped = {name for name, each in dag.task_dict.items() if each.is_mapped}
    assert mapped == {"send", "wait", "recall"}
    assert len(dag.task_dict) == 7
