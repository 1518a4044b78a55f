"""Recall, reschedule: true answers, in time and too late."""

from __future__ import annotations

from datetime import datetime, timedelta

import psycopg2
import pytest
from tests.acting import DAY, HOUR
from tests.clock import NOW, Clock
from tests.logins import SUPERUSER, as_user
from tests.waiting import ask, connected

from duewheel.store.broker import Broker
from duewheel.store.values.errors import (
    AlreadyReleased,
    DelayOutOfRange,
    InvalidArgument,
    InvalidInstant,
    InvalidKey,
    NulInText,
    UnknownMessage,
    UnknownTopic,
    WrongMessageType,
)
from duewheel.store.values.messages import KeyRecall, RecallOutcome, RecallReceipt, SendOutcome


@pytest.fixture
def topic(timed_broker: Broker) -> Broker:
    timed_broker.create_topic("t")
    return timed_broker


def received(broker: Broker) -> list[bytes]:
    return sorted(message.body for message in broker.consumer("t", "g").receive())


def test_wrong_ids_and_names_are_refused(topic: Broker) -> None:
    for bad in ("", "xyz", "0" * 43, "F" * 44, "f" * 44):
        for call in (topic.recall, topic.find, topic.history, lambda one: topic.reschedule(one, delay=HOUR)):
            with pytest.raises(InvalidArgument, match="not a message id"):
                call(bad)
    for wrong in (None, 17, b"00"):
        with pytest.raises(InvalidArgument):
            topic.recall(wrong)  # type: ignore[arg-type]
    for statement in ("recall(null)", "find(null)", "history(null)", "reschedule(null, now())"):
        with pytest.raises(InvalidArgument, match="null is not a message id"):
            topic._database.rows(f"select * from duewheel.{statement}", ())
    for by_key in (topic.recall_key, topic.find_key):
        with pytest.raises(UnknownTopic):
            by_key("none", "k")
    with pytest.raises(NulInText):
        topic.recall_key("t", "\0")
    with pytest.raises(NulInText):
        topic.find("\0")


def test_x03_x07_a_move_may_be_asked_for_again(topic: Broker, clock: Clock) -> None:
    first = topic.send("t", b"a", delay=HOUR)
    moved = topic.reschedule(first.message_id, delay=2 * HOUR, idempotency_key="move")
    assert moved.outcome is SendOutcome.SENT
    clock.advance(HOUR)
    again = topic.reschedule(first.message_id, delay=2 * HOUR, idempotency_key="move")
    assert (again.message_id, again.deliver_at) == (moved.message_id, moved.deliver_at)
    assert again.outcome is SendOutcome.DUPLICATE
    another = topic.reschedule(first.message_id, delay=2 * HOUR, idempotency_key="another")
    assert another.message_id != moved.message_id
    again = topic.reschedule(first.message_id, delay=HOUR, idempotency_key="move")
    assert (again.message_id, again.deliver_at) == (moved.message_id, moved.deliver_at)
    clock.advance(HOUR)
    assert received(topic) == []
    clock.advance(HOUR)
    assert received(topic) == [b"a"]
    assert topic.recall(again.message_id) == RecallReceipt(RecallOutcome.ALREADY_RELEASED, another.message_id)


def test_x03_x07_a_move_by_key_may_be_repeated(topic: Broker) -> None:
    for body in (b"a", b"b", b"c"):
        topic.send("t", body, delay=HOUR, key="k")
    moved = topic.reschedule_key("t", "k", delay=2 * HOUR, idempotency_key="move")
    assert [one.outcome for one in moved] == [SendOutcome.SENT] * 3
    topic.send("t", b"d", delay=HOUR, key="k")
    sent = topic.send("t", b"e", delay=HOUR, idempotency_key="move/1")
    assert sent.outcome is SendOutcome.SENT
    again = topic.reschedule_key("t", "k", delay=2 * HOUR, idempotency_key="move")
    assert [one.outcome for one in again] == [SendOutcome.DUPLICATE] * 3
    assert [(one.message_id, one.deliver_at) for one in again] == [
        (one.message_id, one.deliver_at) for one in moved
    ]
    assert topic.send("t", b"e", delay=HOUR, idempotency_key="move/1").message_id == sent.message_id


def test_x02_x07_a_move_by_a_key_with_a_space_can_be_repeated(topic: Broker) -> None:
    topic.send("t", b"a", delay=HOUR, key="order 4711")
    others = [topic.send("t", b"b", delay=HOUR, key=key) for key in ("order", "4711", "order4711", " ")]
    (moved,) = topic.reschedule_key("t", "order 4711", delay=2 * HOUR, idempotency_key="move order 4711")
    others.append(topic.send("t", b"c", delay=HOUR, key="order 4711"))
    (again,) = topic.reschedule_key("t", "order 4711", delay=3 * HOUR, idempotency_key="move order 4711")
    assert (again.message_id, again.deliver_at) == (moved.message_id, moved.deliver_at)
    assert again.outcome is SendOutcome.DUPLICATE
    for one in (moved, *others):
        found = topic.find(one.message_id)
        assert found is not None
        assert not found.recalled


def test_x07_a_move_that_was_refused_keeps_no_key(topic: Broker, clock: Clock) -> None:
    with pytest.raises(UnknownMessage):
        topic.reschedule_key("t", "k", delay=HOUR, idempotency_key="move")
    first = topic.send("t", b"a", delay=HOUR, key="k")
    with pytest.raises(DelayOutOfRange):
        topic.reschedule(first.message_id, delay=25 * HOUR, idempotency_key="move")
    with pytest.raises(InvalidKey, match="must have 1 to 512 characters"):
        topic.reschedule(first.message_id, delay=HOUR, idempotency_key="")
    (moved,) = topic.reschedule_key("t", "k", delay=2 * HOUR, idempotency_key="move")
    assert moved.outcome is SendOutcome.SENT
    clock.advance(2 * HOUR)
    assert received(topic) == [b"a"]


def test_reschedule_refuses_what_cannot_be(topic: Broker, clock: Clock) -> None:
    receipt = topic.send("t", b"a", delay=HOUR)
    recalled = topic.send("t", b"b", delay=HOUR)
    topic.recall(recalled.message_id)
    with pytest.raises(UnknownMessage):
        topic.reschedule(recalled.message_id, delay=HOUR)
    with pytest.raises(UnknownMessage):
        topic.reschedule("0" * 44, delay=HOUR)
    with pytest.raises(DelayOutOfRange):
        topic.reschedule(receipt.message_id, delay=25 * HOUR)
    with pytest.raises(InvalidInstant):
        topic.reschedule(receipt.message_id, deliver_at=datetime(2026, 1, 5, 11))  # noqa: DTZ001
    with pytest.raises(InvalidArgument):
        topic.reschedule(receipt.message_id, delay=HOUR, deliver_at=NOW)
    found = topic.find(receipt.message_id)
    assert found is not None
    assert not found.recalled
    clock.advance(HOUR)
    topic.tick("t")
    with pytest.raises(AlreadyReleased):
        topic.reschedule(receipt.message_id, delay=HOUR)
    assert received(topic) == [b"a"]


@pytest.mark.parametrize(
    "call", ["recall(%(id)s, %(now)s)", "recall_many('t', everything => true, now => %(now)s)"]
)
def test_x01_a_replicating_session_checks_a_recall_at_commit(topic: Broker, clock: Clock, call: str) -> None:
    """Tools that load data set this for their login; it switches other triggers off."""
    message = topic.send("t", b"", delay=HOUR)
    with connected(as_user(topic.dsn, SUPERUSER), autocommit=False) as connection:
        ask(connection, "set session_replication_role = replica")
        with connection.cursor() as cursor:
            cursor.execute(f"select duewheel.{call}", {"id": message.message_id, "now": clock()})
        clock.advance(HOUR)
        topic.tick("t")
        with pytest.raises(psycopg2.Error) as refused:
            connection.commit()
    assert refused.value.pgcode == AlreadyReleased.sqlstate


def test_x01_a_recall_by_topic_leaves_retries_and_dead_letters(topic: Broker, clock: Clock) -> None:
    """Its check at COMMIT would let a recall of a retry pass that was delivered meanwhile."""
    topic.send("t", b"1", delay=HOUR, key="k")
    clock.advance(HOUR)
    consumer = topic.consumer("t", "g")
    consumer.nack(consumer.receive(), delay=HOUR)
    for name in ("%RETRY%g%t", "%DLQ%g%t"):
        for call in (
            lambda: topic.recall_key(name, "k"),  # noqa: B023
            lambda: topic.recall_many(name, everything=True),  # noqa: B023
            lambda: topic.reschedule_key(name, "k", delay=HOUR),  # noqa: B023
        ):
            with pytest.raises(WrongMessageType, match="are not recalled"):
                call()
    clock.advance(HOUR)
    assert received(topic) == [b"1"]


def test_messages_forgotten_by_the_logs_are_unknown(timed_broker: Broker, clock: Clock) -> None:
    """Their slot waits, as more than half of it is of a topic with a longer retention."""
    broker = timed_broker
    broker.create_topic("short", retention=DAY)
    broker.create_topic("long", retention=timedelta(days=30))
    broker.send_many("long", [{"body": b"", "delay": HOUR}] * 3)
    recalled, released = (
        broker.send("short", b"", delay=HOUR, key=key).message_id for key in ("recalled", "released")
    )
    assert broker.recall(recalled).outcome == "recalled"
    clock.advance(timedelta(hours=2))
    for topic in ("short", "long"):
        broker.tick(topic)
    assert [broker.recall(one).outcome for one in (recalled, released)] == ["recalled", "already_released"]
    for _ in range(10):
        clock.advance(DAY)
        broker.maintain()
        broker.tick("short")
    with connected(broker.dsn) as connection:
        assert ask(connection, "select count(*) from duewheel.any_message") == [(5,)], "the rows are there"
    assert [broker.recall(one).outcome for one in (recalled, released)] == ["not_found", "not_found"]
    assert [broker.recall_key("short", key).outcome for key in ("recalled", "released")] == [
        "not_found",
        "not_found",
    ]


def test_x01_a_key_is_recalled_only_if_no_message_was_released(topic: Broker, clock: Clock) -> None:
    for hours in (1, 2, 3):
        topic.send("t", b"step", delay=hours * HOUR, key="ladder")
    clock.advance(HOUR)
    assert received(topic) == [b"step"]
    assert topic.recall_key("t", "ladder") == KeyRecall(RecallOutcome.ALREADY_RELEASED, 2, 1)
    assert topic.recall_key("t", "ladder") == KeyRecall(RecallOutcome.ALREADY_RELEASED, 0, 1)
    topic.send("t", b"other", delay=HOUR, key="other")
    assert topic.recall_key("t", "other") == KeyRecall(RecallOutcome.RECALLED, 1, 0)
    assert topic.recall_key("t", "other") == KeyRecall(RecallOutcome.RECALLED, 0, 0)
    assert topic.recall_key("t", "no such key") == KeyRecall(RecallOutcome.NOT_FOUND, 0, 0)
