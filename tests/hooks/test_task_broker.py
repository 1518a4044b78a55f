"""Messages that a task sends name the task instance; tests/operators/test_in_airflow.py shows it inside
Airflow."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from duewheel.hooks.task_broker import SENT_BY_TASK, TaskBroker
from duewheel.hooks.task_name import task_address
from duewheel.store import Broker, NewMessage
from duewheel.store.values.errors import InvalidArgument, PropertiesTooLarge

NAME = task_address("shop", "manual__1", "send", -1)
SIGNED = {SENT_BY_TASK: NAME}
HOUR = timedelta(hours=1)
#: So many bytes of JSON are just within the limit.
FULL = {"p": "x" * (16 * 1024 - 9)}


@pytest.fixture
def sender(broker: Broker) -> Iterator[TaskBroker]:
    """A broker in the hands of a task."""
    broker.create_topic("orders")
    with TaskBroker(broker.dsn, listen=True, call_timeout=timedelta(minutes=1), task=NAME) as sender:
        yield sender


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (None, SIGNED),
        ({}, SIGNED),
        ({"a": 1}, {"a": 1, **SIGNED}),
        ({SENT_BY_TASK: "me"}, {SENT_BY_TASK: "me"}),
        (FULL, FULL),
    ],
    ids=["none", "empty", "some", "its own", "full"],
)
def test_a_message_names_the_task_that_sent_it(sender: TaskBroker, given: Any, kept: Any) -> None:
    receipts = [
        sender.send("orders", b"", delay=HOUR, properties=given),
        *sender.send_many("orders", [{"body": b"", "delay": HOUR, "properties": given}]),
        *sender.send_many("orders", iter([NewMessage(b"", delay=HOUR, properties=given)])),
    ]
    found = [sender.find(one.message_id) for one in receipts]
    assert [one.properties for one in found if one is not None] == [kept] * 3


def test_the_type_of_the_body_comes_before_the_name_of_the_task(sender: TaskBroker) -> None:
    """Properties that have room for the type alone have it."""
    typed = {"content-type": "application/json"}
    crowded = {"p": "x" * (16 * 1024 - 60)}
    sent = [
        sender.send("orders", {"order": 1}, delay=HOUR),
        *sender.send_many("orders", [{"body": {"order": 2}, "delay": HOUR, "properties": crowded}]),
    ]
    found = [sender.find(receipt.message_id) for receipt in sent]
    assert [one.properties for one in found if one is not None] == [{**typed, **SIGNED}, {**typed, **crowded}]


def test_a_wait_names_the_task_that_waits(sender: TaskBroker) -> None:
    waits = sender.begin_wait("orders", "k", HOUR, {"order": 1}, properties={"by": "ann"})
    found = sender.find(waits.message_id)
    assert found is not None
    typed = {"content-type": "application/json"}
    assert found.properties == {"awaits_answer": True, "by": "ann", **typed, **SIGNED}


def test_mistakes_have_the_usual_errors(sender: TaskBroker) -> None:
    with pytest.raises(PropertiesTooLarge):
        sender.send("orders", b"", delay=HOUR, properties={"p": "x" * 16 * 1024})
    with pytest.raises(InvalidArgument) as error:
        sender.send_many(
            "orders", [{"body": b"", "delay": HOUR}, {"body": b"", "delay": HOUR, "properties": [1]}]
        )
    assert error.value.index == 1


def test_the_caller_s_transaction_is_the_one_that_counts(sender: TaskBroker) -> None:
    import psycopg2

    connection = psycopg2.connect(sender.dsn)
    try:
        sender.send("orders", b"", delay=HOUR, key="k", connection=connection)
        sender.send_many("orders", [{"body": b"", "delay": HOUR, "key": "k"}], connection)
        connection.rollback()
    finally:
        connection.close()
    assert sender.find_key("orders", "k") == []
