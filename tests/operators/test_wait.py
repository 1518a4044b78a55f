"""Waiting for an answer, in a task; tests/operators/test_in_airflow.py and test_live.py run it inside
Airflow."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG
from airflow.sdk.exceptions import (
    AirflowFailException,
    AirflowSkipException,
    DownstreamTasksSkipped,
    TaskDeferred,
)
from tests.operators.tasks import a_try

from duewheel.operators.wait import WaitForAnswerBranchOperator, WaitForAnswerOperator
from duewheel.store.values.errors import DueWheelError, InvalidArgument
from duewheel.triggers.answer import AnswerTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context

    from duewheel.store import Broker

HOUR = timedelta(hours=1)
AT_ONCE = timedelta(0)

pytestmark = pytest.mark.usefixtures("orders")


def waiting(**arguments: Any) -> WaitForAnswerOperator:
    """A task that waits on ``orders`` under the key ``k``."""
    return WaitForAnswerOperator(
        **{"task_id": "wait", "topic": "orders", "key": "k", "timeout": HOUR, **arguments}
    )


def deferred(task: WaitForAnswerOperator, context: Context) -> str:
    """Begin to wait; the id of the message that waits."""
    with pytest.raises(TaskDeferred) as left:
        task.execute(context)
    trigger = left.value.trigger
    assert isinstance(trigger, AnswerTrigger)
    assert AnswerTrigger(**trigger.serialize()[1]).serialize() == trigger.serialize()
    return trigger.message_id


def resumed(task: WaitForAnswerOperator, message_id: str) -> Any:
    """Continue after the trigger's event."""
    return task.execute_complete(a_try(), {"message_id": message_id})


def test_x26_it_returns_the_answer(broker: Broker) -> None:
    task = waiting(body={"order": 4711})
    message_id = deferred(task, a_try())
    assert task.linked_message_id == message_id
    broker.answer_key("orders", "k", {"approved": True})
    assert resumed(waiting(), message_id) == {
        "outcome": "answered",
        "answer": {"approved": True},
        "message_id": message_id,
    }


def test_x26_an_event_before_the_end_keeps_the_wait(broker: Broker) -> None:
    """The trigger's word does not count: the broker's does."""
    task = waiting()
    message_id = deferred(task, a_try())
    with pytest.raises(TaskDeferred):
        resumed(task, message_id)
    broker.reschedule(message_id, delay=AT_ONCE)
    broker.tick("orders")
    assert resumed(task, message_id)["outcome"] == "timed_out"


def test_x07_a_retried_task_keeps_waiting_a_cleared_one_restarts(broker: Broker) -> None:
    first = deferred(waiting(retries=2), a_try(1, retries=2))
    assert deferred(waiting(retries=2), a_try(2, retries=2)) == first
    # Airflow's clear after the second try: max_tries is its number and the retries.
    second = deferred(waiting(retries=2), a_try(3, retries=4))
    assert second != first
    assert deferred(waiting(retries=2), a_try(4, retries=4)) == second
    broker.answer_key("orders", "k", "yes")
    # The worker was lost after the answer: the next try learns of it without another wait.
    assert waiting(retries=2).execute(a_try(5, retries=4))["answer"] == "yes"
    assert resumed(waiting(), first)["outcome"] == "recalled"


def test_x26_an_early_answer_ends_one_wait_at_once(broker: Broker) -> None:
    assert broker.answer_key("orders", "k", "yes", early=True).outcome == "early"
    assert waiting().execute(a_try())["answer"] == "yes"
    # The worker was lost before Airflow noted the result.
    assert waiting(retries=1).execute(a_try(1, retries=1))["answer"] == "yes"
    deferred(waiting(), a_try(2, retries=1))


def test_another_task_under_the_same_key_takes_the_wait_over(broker: Broker) -> None:
    first = deferred(waiting(), a_try(task_id="one"))
    second = deferred(waiting(), a_try(task_id="two"))
    broker.answer_key("orders", "k", 1)
    assert resumed(waiting(), first)["outcome"] == "recalled"
    assert resumed(waiting(), second)["outcome"] == "answered"


@pytest.mark.parametrize(
    ("on_timeout", "timed_out", "recalled"),
    [
        ("return", None, None),
        ("fail", AirflowFailException, AirflowSkipException),
        ("skip", AirflowSkipException, AirflowSkipException),
    ],
)
def test_what_a_timeout_and_a_recall_do_to_the_task(
    broker: Broker,
    on_timeout: str,
    timed_out: type[Exception] | None,
    recalled: type[Exception] | None,
) -> None:
    task = waiting(on_timeout=on_timeout)
    for outcome, expected in (("recalled", recalled), ("timed_out", timed_out)):
        message_id = deferred(task, a_try(task_id=outcome))
        if outcome == "recalled":
            broker.recall(message_id)
        else:
            broker.reschedule(message_id, delay=AT_ONCE)
            broker.tick("orders")
        if expected is None:
            assert resumed(task, message_id) == {
                "outcome": outcome,
                "answer": None,
                "message_id": message_id,
            }
        else:
            with pytest.raises(expected, match="No answer to key 'k'"):
                resumed(task, message_id)


def test_an_outcome_that_is_no_longer_known_fails_the_task(broker: Broker) -> None:
    message_id = deferred(waiting(), a_try())
    broker.delete_topic("orders")
    with pytest.raises(AirflowFailException, match="no longer known"):
        resumed(waiting(), message_id)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"timeout": 5}, "timeout"),
        ({"timeout": -HOUR}, "timeout"),
        ({"key": "k" * 256}, "1 to 255 characters; got 256"),
        ({"on_timeout": "wait"}, "'return', 'fail', 'skip'"),
        ({"topic": "a b"}, "topic"),
    ],
)
def test_a_mistake_is_refused_when_the_dag_is_read(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(DueWheelError, match=said):
        waiting(**arguments)


@pytest.mark.parametrize(
    ("answer", "skipped"),
    [
        ("ship", {"refuse", "escalate"}),
        (None, {"ship", "refuse"}),
        ("recall", {"ship", "refuse", "escalate"}),
    ],
)
def test_a_branch_hands_its_result_on_and_skips_the_others(
    broker: Broker, answer: str | None, skipped: set[str]
) -> None:
    with DAG("branches"):
        task = WaitForAnswerBranchOperator(
            task_id="wait",
            topic="orders",
            key="k",
            timeout=HOUR,
            if_answered=lambda answer, run_id: answer["to"] + run_id,
            if_timed_out=["escalate"],
        )
        task >> [EmptyOperator(task_id=name) for name in ("ship", "refuse", "escalate")]
    message_id = deferred(task, a_try())
    if answer == "recall":
        broker.recall(message_id)
    elif answer is None:
        broker.reschedule(message_id, delay=AT_ONCE)
        broker.tick("orders")
    else:
        broker.answer_key("orders", "k", {"to": answer})
    pushed: dict[str, Any] = {}
    context = a_try(run_id="")
    task_instance: Any = context["ti"]
    task_instance.task = task
    task_instance.xcom_push = lambda key, value: pushed.update({key: value})
    with pytest.raises(DownstreamTasksSkipped) as ended:
        task.execute_complete(context, {"message_id": message_id})
    assert {name for name, _ in ended.value.tasks} == skipped
    assert pushed["return_value"]["message_id"] == message_id


def test_a_branch_names_its_tasks() -> None:
    with pytest.raises(InvalidArgument, match="if_timed_out"):
        WaitForAnswerBranchOperator(
            task_id="wait",
            topic="orders",
            timeout=HOUR,
            if_answered="a",
            if_timed_out="b",
            on_timeout="fail",
        )
