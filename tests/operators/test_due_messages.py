"""One object for topic and group: an asset whose name says what its watcher does, and its tasks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk import DAG

from duewheel.operators.due_messages import DueMessages
from duewheel.store import Consumer, Message
from duewheel.store.values.errors import InvalidArgument, InvalidTagExpression
from duewheel.triggers.timing_wheel import TimingWheelTrigger

CHOSEN: dict[str, Any] = {
    "tags": "unpaid || disputed",
    "filter": "$.amount > 100",
    "start": "latest",
    "duewheel_conn_id": "shop",
}
RINGING: dict[str, Any] = {"ring_again": "PT5S", "min_messages": 3, "max_wait": timedelta(minutes=1)}


def test_the_asset_has_the_trigger_and_names_topic_and_group() -> None:
    due = DueMessages("orders", "canceller")
    (watcher,) = due.watchers
    assert watcher.trigger.serialize() == TimingWheelTrigger("orders", "canceller").serialize()
    assert (due.name, due.uri, due.group) == ("orders/canceller", "orders/canceller", "canceller")


def test_every_argument_reaches_the_trigger() -> None:
    (watcher,) = DueMessages("orders", "g", **CHOSEN, **RINGING).watchers
    assert watcher.trigger.serialize() == TimingWheelTrigger("orders", "g", **CHOSEN, **RINGING).serialize()


@pytest.mark.parametrize("differs", [{name: value} for name, value in (CHOSEN | RINGING).items()], ids=str)
def test_another_trigger_is_another_asset(differs: dict[str, Any]) -> None:
    names = {DueMessages("orders", "g", **given).name for given in ({}, differs, differs)}
    assert len(names) == 2


def test_a_long_filter_is_a_digest_in_the_name() -> None:
    names = {DueMessages("orders", "g", filter=f"$.amount > 1{'0' * 2_000}{last}").name for last in "12"}
    assert len(names) == 2
    assert max(map(len, names)) < 100


def test_a_default_that_is_given_changes_no_name() -> None:
    assert DueMessages("orders", "g", tags=None, min_messages=1).name == "orders/g"


def test_its_tasks_read_what_it_watches() -> None:
    due = DueMessages("orders", "g", **CHOSEN)

    @due.task
    def whole(messages: Sequence[Message], consumer: Consumer, region: str) -> str:
        """Get the batch and the consumer."""
        return f"{region} {len(messages)} {consumer.name}"

    @due.task(one_by_one=True, retries=2, durable_acks=False)
    def single(message: Message) -> None:
        """Get a message."""

    @due.spark_task(columns=["key"], durable_acks=False)
    def spark(batch: object) -> None:
        """Get a batch of Spark's."""

    with DAG("reads", schedule=[due]) as dag:
        whole(region="north")
        single()
        spark()
    for task in dag.tasks:
        reads = {name: getattr(task, name) for name in ("topic", "group", *CHOSEN)}
        assert reads == {"topic": "orders", "group": "g", **CHOSEN}
    assert dag.get_task("single").one_by_one
    assert dag.get_task("single").retries == 2
    assert dag.get_task("spark").columns == ["key"]
    durable = {task.task_id: task.durable_acks for task in dag.tasks}
    assert durable == {"whole": True, "single": False, "spark": False}


def test_a_task_cannot_read_another_group() -> None:
    due = DueMessages("orders", "g")
    for given in ({"topic": "returns"}, {"tags": "late"}):
        with pytest.raises(TypeError, match="multiple values for keyword argument"):
            due.task(**given)


def test_a_mistake_is_refused_when_the_dag_is_read() -> None:
    with pytest.raises(InvalidArgument, match="is not a topic name"):
        DueMessages("my orders", "g")
    with pytest.raises(InvalidTagExpression):
        DueMessages("orders", "g", tags="a b")
    with pytest.raises(InvalidArgument, match="has no first parameter for the messages"):
        DueMessages("orders", "g").task(lambda: None)
