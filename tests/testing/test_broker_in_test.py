"""The assertions of ``duewheel.testing`` hold when they should, and say what was sent when they do not."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta

import pytest
from airflow.sdk import Connection, Context

from duewheel.hooks.broker import DueWheelHook
from duewheel.operators.send import SendDelayMessageOperator
from duewheel.store import Broker, UnknownTopic
from duewheel.testing import BrokerInTest

HOUR = timedelta(hours=1)


@pytest.fixture
def topic(duewheel: BrokerInTest) -> BrokerInTest:
    """The broker with a DELAY topic ``t`` of one queue and a longest delay of ten days."""
    duewheel.create_topic("t", queues=1, max_delay=timedelta(days=10))
    return duewheel


def test_a_message_is_found_by_each_of_its_fields(topic: BrokerInTest) -> None:
    receipt = topic.send(
        "t", {"order": 1}, key="1", tag="unpaid", properties={"region": "north", "n": 1}, delay=HOUR
    )
    for description in (
        {},
        {"key": "1"},
        {"due_in": HOUR},
        {"body": {"order": 1}},
        {"tag": "unpaid"},
        {"properties": {"region": "north"}},
    ):
        assert topic.assert_sent("t", **description).message_id == receipt.message_id
    for other in (
        {"key": "2"},
        {"due_in": HOUR + timedelta(seconds=2)},
        {"body": {"order": 2}},
        {"tag": "paid"},
        {"properties": {"region": "south"}},
    ):
        with pytest.raises(AssertionError, match="no message of topic t as asserted"):
            topic.assert_sent("t", **other)


def test_a_later_assertion_expects_a_shorter_delay(topic: BrokerInTest) -> None:
    topic.send("t", b"", key="1", delay=HOUR)
    topic.advance(minutes=20)
    topic.assert_sent("t", "1", due_in=timedelta(minutes=40))


def test_one_message_of_a_ladder_is_told_by_when_it_is_due(topic: BrokerInTest) -> None:
    for hours in (1, 24, 72):
        topic.send("t", b"", key="1", delay=hours * HOUR)
    for hours in (1, 24, 72):
        topic.assert_sent("t", "1", due_in=hours * HOUR)
    with pytest.raises(AssertionError, match="3 messages of topic t as asserted"):
        topic.assert_sent("t", "1")


def test_a_failed_assertion_says_what_was_sent(topic: BrokerInTest) -> None:
    with pytest.raises(AssertionError, match="nothing was sent to it"):
        topic.assert_sent("t")
    topic.send("t", {"order": 1}, key="1", delay=HOUR)
    topic.recall_key("t", "1")
    with pytest.raises(AssertionError) as failed:
        topic.assert_sent("t", "2")
    assert str(failed.value) == (
        "no message of topic t as asserted; sent to it were:\n"
        "  key '1', tag None, due in 1 h, body b'{\"order\":1}', recalled"
    )


def test_a_message_that_consumers_have_was_sent_all_the_same(topic: BrokerInTest) -> None:
    topic.send("t", b"", key="1", delay=HOUR)
    topic.advance(HOUR)
    topic.consumer("t", "g").receive()
    topic.assert_sent("t", "1", due_in=timedelta(0))


def test_a_moved_message_is_one_message(topic: BrokerInTest) -> None:
    topic.send("t", b"", key="1", delay=HOUR)
    topic.reschedule_key("t", "1", delay=2 * HOUR)
    topic.assert_sent("t", "1", due_in=2 * HOUR)
    topic.assert_sent("t", due_in=2 * HOUR)


def replaced(broker: BrokerInTest) -> None:
    """Another message with the same key waits now."""
    broker.send("t", b"new", key="1", delay=2 * HOUR, on_conflict="replace")


def recalled(broker: BrokerInTest) -> None:
    """No message waits any more."""
    broker.recall_key("t", "1")


def test_a_replaced_message_does_not_count(topic: BrokerInTest) -> None:
    topic.send("t", b"old", key="1", delay=HOUR)
    replaced(topic)
    assert topic.assert_sent("t", "1").body == b"new"


def test_a_recall_is_asserted(topic: BrokerInTest) -> None:
    receipt = topic.send("t", b"", key="1", delay=HOUR)
    topic.assert_sent("t")
    with pytest.raises(AssertionError, match="was recalled; sent to it were"):
        topic.assert_recalled("t", "1")
    topic.recall(receipt.message_id)
    assert topic.assert_recalled("t", "1").message_id == receipt.message_id
    topic.assert_not_sent("t", "1")


@pytest.mark.parametrize("change", [replaced, lambda broker: broker.advance(HOUR)], ids=["replaced", "came"])
def test_a_message_that_comes_was_not_recalled(
    topic: BrokerInTest, change: Callable[[BrokerInTest], object]
) -> None:
    topic.send("t", b"", key="1", delay=HOUR)
    change(topic)
    with pytest.raises(AssertionError, match="not every message with key '1'"):
        topic.assert_recalled("t", "1")
    with pytest.raises(AssertionError, match="a message was sent to topic t"):
        topic.assert_not_sent("t")


def test_nothing_was_recalled_where_nothing_was_sent(topic: BrokerInTest) -> None:
    topic.assert_not_sent("t")
    with pytest.raises(AssertionError, match="nothing was sent to it"):
        topic.assert_recalled("t", "1")


def test_a_topic_that_is_mistyped_is_no_topic_without_messages(topic: BrokerInTest) -> None:
    for ask in (
        lambda: topic.assert_sent("T"),
        lambda: topic.assert_sent("T", "1"),
        lambda: topic.assert_not_sent("T"),
        lambda: topic.assert_recalled("T", "1"),
    ):
        with pytest.raises(UnknownTopic):
            ask()


def test_airflows_connection_leads_to_it(topic: BrokerInTest) -> None:
    send = SendDelayMessageOperator(task_id="send", topic="t", body="", key="1", delay=HOUR)
    send.execute(Context(params={}))  # type: ignore[typeddict-item]  # a plain one does
    topic.assert_sent("t", "1", due_in=HOUR)


def test_another_connection_leads_to_it_when_told(topic: BrokerInTest) -> None:
    topic.connect("shop")
    topic.connect("orders_db", "postgres")
    with DueWheelHook("shop").get_conn() as broker:
        assert [one.name for one in broker.topics()] == ["t"]
    database = Connection.from_json(os.environ["AIRFLOW_CONN_ORDERS_DB"])
    assert (database.conn_type, database.schema) == (
        "postgres",
        topic.dsn.rpartition("dbname=")[2].split()[0],
    )


def test_the_shells_address_leads_to_it(topic: BrokerInTest) -> None:
    with Broker(os.environ["DUEWHEEL_DSN"]) as broker:
        assert [one.name for one in broker.topics()] == ["t"]
