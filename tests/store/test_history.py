"""The history of a message: every state of every group with its instant and who held it (D06, R15, X08)."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from random import Random
from typing import Any

import pytest
from tests.acting import HOUR, MINUTE, SECOND
from tests.clock import NOW, Clock
from tests.conftest import execute
from tests.waiting import connected

from duewheel.store.broker import Broker
from duewheel.store.values.retry_policy import RetryPolicy


@pytest.fixture
def topic(timed_broker: Broker) -> Broker:
    timed_broker.create_topic("t", message_type="NORMAL", queues=1)
    return timed_broker


def told(broker: Broker, message_id: str, group: str | None) -> list[tuple[Any, ...]]:
    """State, minutes since the start, minutes of its end, attempt and holder of each entry of a group."""

    def minutes(at: datetime | None) -> float | None:
        return None if at is None else (at - NOW) / MINUTE

    return [
        (e.state, minutes(e.at), minutes(e.until_at), e.attempt, e.consumer)
        for e in broker.history(message_id)
        if e.consumer_group == group
    ]


def test_d06_a_message_that_is_consumed_again_after_a_rewind(topic: Broker, clock: Clock) -> None:
    receipt = topic.send("t", "a")
    topic.send("t", "other")
    one, two = topic.consumer("t", "g", name="one"), topic.consumer("t", "g", name="two")
    one.ack(one.receive(invisible=5 * MINUTE))
    clock.advance(MINUTE)
    topic.rewind("t", "g", "earliest")
    batch = two.receive(invisible=5 * MINUTE)
    clock.advance(MINUTE)
    topic.rewind("t", "g", "earliest")
    clock.advance(MINUTE)
    one.ack(one.receive(invisible=5 * MINUTE)[0])
    assert len(batch) == 2
    assert told(topic, receipt.message_id, "g") == [
        ("Inflight", 0, 5, 1, "one"),
        ("Acked", 0, None, 1, "one"),
        ("Ready", 1, None, 1, None),
        ("Inflight", 1, 2, 1, "two"),
        ("Ready", 2, None, 1, None),
        ("Inflight", 3, 8, 1, "one"),
        ("Acked", 3, None, 1, "one"),
    ]


def test_d06_retries_of_several_rounds_have_each_its_own_failure(topic: Broker, clock: Clock) -> None:
    receipt = topic.send("t", "a")
    consumer = topic.consumer("t", "g", name="me", retry=RetryPolicy.intervals([10 * MINUTE]))
    consumer.nack(consumer.receive(), reason="first")
    clock.advance(MINUTE)
    topic.rewind("t", "g", "earliest")
    consumer.nack(consumer.receive(), reason="second")
    clock.advance(10 * MINUTE)
    consumer.nack(consumer.receive(), reason="third")
    assert told(topic, receipt.message_id, "g") == [
        ("Inflight", 0, 1, 1, "me"),
        ("WaitingRetry", 0, 10, 2, None),
        ("Ready", 1, None, 1, None),
        ("Inflight", 1, 2, 1, "me"),
        ("Deleted", 1, None, 2, None),
        ("WaitingRetry", 1, 11, 2, None),
        ("Ready", 11, None, 2, None),
        ("Inflight", 11, 12, 2, "me"),
        ("DLQ", 11, None, 2, None),
    ]
    reasons = [e.reason for e in topic.history(receipt.message_id) if e.state in ("WaitingRetry", "DLQ")]
    assert reasons == ["first", "second", "third"]


def test_d06_what_was_in_flight_at_a_rewind_is_ready_again(topic: Broker, clock: Clock) -> None:
    receipt = topic.send("t", "a")
    consumer = topic.consumer("t", "g", name="me")
    consumer.receive(invisible=HOUR)
    clock.advance(MINUTE)
    topic.rewind("t", "g", NOW + SECOND)
    clock.advance(MINUTE)
    consumer.ack(consumer.receive(invisible=MINUTE))
    assert told(topic, receipt.message_id, "g") == [
        ("Inflight", 0, 1, 1, "me"),
        ("WaitingRetry", 1, 1, 1, None),
        ("Ready", 2, None, 1, None),
        ("Inflight", 2, 3, 1, "me"),
        ("Acked", 2, None, 1, "me"),
    ]


def test_d06_groups_and_instances_have_each_their_own_states(topic: Broker) -> None:
    receipt = topic.send("t", "a", tag="x")
    one = topic.consumer("t", "all", name="one", mode="broadcasting")
    two = topic.consumer("t", "all", name="two", mode="broadcasting")
    one.nack(one.receive(invisible=MINUTE), reason="broken")
    two.ack(two.receive(invisible=MINUTE))
    # A group that did not choose it has no part in it.
    assert not topic.consumer("t", "other", "y").receive()
    consumer = topic.consumer("t", "g", "x", name="me")
    consumer.ack(consumer.receive(invisible=MINUTE))
    for group, name, state in (
        ("all/one", "one", "Skipped"),
        ("all/two", "two", "Acked"),
        ("g", "me", "Acked"),
    ):
        held = [("Inflight", 0, 1, 1, name), (state, 0, None, 1, name)]
        assert told(topic, receipt.message_id, group) == held
    assert told(topic, receipt.message_id, "other") == []


@pytest.mark.parametrize("message_type", ["NORMAL", "FIFO"])
def test_x08_a_rewind_skips_unread_messages_alone(
    timed_broker: Broker, clock: Clock, message_type: str
) -> None:
    timed_broker.create_topic("t", message_type=message_type, queues=1)
    group = "m" if message_type == "FIFO" else None
    consumer = timed_broker.consumer("t", "g", "x", name="me")
    sent = {
        name: timed_broker.send("t", name, tag=tag, message_group=group).message_id
        for name, tag in (("read", "x"), ("unread", "x"), ("other tag", "y"))
    }
    consumer.ack(consumer.receive(max_messages=1, invisible=MINUTE))
    clock.advance(MINUTE)
    late = timed_broker.consumer("t", "late", start="latest")
    timed_broker.rewind("t", "g", "latest")
    clock.advance(MINUTE)
    timed_broker.rewind("t", "g", "latest")
    timed_broker.rewind("t", "late", "latest")
    held = [("Inflight", 0, 1, 1, "me"), ("Acked", 0, None, 1, "me")]
    skipped = [("Skipped", 1, None, 1, None)]
    assert told(timed_broker, sent["read"], "g") == held
    assert told(timed_broker, sent["unread"], "g") == skipped
    assert told(timed_broker, sent["other tag"], "g") == []
    assert timed_broker.history(sent["unread"])[-1].reason == "the group was rewound to a later position"
    # A group has no part in messages from before its start.
    assert not late.receive()
    assert told(timed_broker, sent["unread"], "late") == []
    clock.advance(MINUTE)
    timed_broker.rewind("t", "g", "earliest")
    timed_broker.rewind("t", "g", "latest")
    assert told(timed_broker, sent["unread"], "g") == [*skipped, ("Skipped", 3, None, 1, None)]


def test_x08_a_rewind_skips_messages_of_an_instance(topic: Broker, clock: Clock) -> None:
    sent = topic.send("t", "a").message_id
    one = topic.consumer("t", "all", name="one", mode="broadcasting")
    topic.consumer("t", "all", name="two", mode="broadcasting")
    one.receive(invisible=5 * MINUTE)
    clock.advance(MINUTE)
    topic.rewind("t", "all", "latest")
    assert told(topic, sent, "all/one") == [("Inflight", 0, 1, 1, "one"), ("Skipped", 1, None, 1, "one")]
    assert told(topic, sent, "all/two") == [("Skipped", 1, None, 1, None)]


def test_d06_a_message_of_a_fifo_topic(timed_broker: Broker, clock: Clock) -> None:
    timed_broker.create_topic("f", message_type="FIFO", queues=1)
    receipts = [timed_broker.send("f", body, message_group="m") for body in ("a", "b")]
    policy = RetryPolicy.ordered(30 * SECOND, max_retries=1)
    consumer = timed_broker.consumer("f", "g", name="me", retry=policy)
    batch = consumer.receive(invisible=MINUTE)
    assert len(batch) == 2
    consumer.nack(batch[0], reason="broken")
    held = ("Inflight", 0, 1, 1, "me")
    assert told(timed_broker, receipts[0].message_id, "g") == [held, ("WaitingRetry", 0, 0.5, 2, None)]
    assert told(timed_broker, receipts[1].message_id, "g") == [held, ("Ready", 0, None, 1, None)]
    clock.advance(MINUTE)
    batch = consumer.receive(invisible=MINUTE)
    consumer.nack(batch[0], reason="broken again")
    assert told(timed_broker, receipts[0].message_id, "g")[1:] == [
        ("WaitingRetry", 0, None, 2, None),
        ("Inflight", 1, 2, 2, "me"),
        ("DLQ", 1, None, 2, None),
    ]
    batch = consumer.receive(invisible=MINUTE)
    consumer.ack(batch)
    assert told(timed_broker, receipts[1].message_id, "g")[-1][0] == "Acked"


#: For each message of each lease, what the lease itself says.
LEASED = """
select coalesce(duewheel.message_id(m.origin_topic_id, m.origin_queue, m.origin_deliver_at, m.origin_seq),
                duewheel.message_id(l.topic_id, l.queue, m.deliver_at, m.seq)), l.leased_at
from duewheel.lease l
cross join lateral duewheel.lease_rows(l.group_id, l.topic_id, l.queue, l.n) m
where l.message_count > 0
"""
STREAM_START = """
select from duewheel.subscription s
cross join lateral duewheel.stream_start(s.group_id, s.topic_id, 'mine', 'earliest') b
"""


@pytest.mark.slow
@pytest.mark.parametrize("message_type", ["NORMAL", "FIFO"])
@pytest.mark.parametrize("course", range(2))
def test_x08_a_history_has_exactly_the_leases_of_its_message(
    timed_broker: Broker, clock: Clock, dsn: str, message_type: str, course: int
) -> None:
    by_chance = Random(course)
    timed_broker.create_topic("t", message_type=message_type, queues=1)
    consumer = timed_broker.consumer("t", "g")
    sent: list[str] = []

    def send() -> None:
        group = f"group-{by_chance.randrange(4)}" if message_type == "FIFO" else None
        sent.append(timed_broker.send("t", b"", message_group=group).message_id)

    def come_late() -> None:
        with connected(dsn, autocommit=False) as late:
            group = "late" if message_type == "FIFO" else None
            receipt = timed_broker.send("t", b"", message_group=group, connection=late)
            clock.advance(SECOND)
            send()
            receive()
            late.commit()
        sent.append(receipt.message_id)

    def receive() -> None:
        batch = consumer.receive(max_messages=by_chance.randint(1, 4), invisible=MINUTE)
        if by_chance.random() < 0.8:
            consumer.ack(batch)

    def rewind() -> None:
        timed_broker.rewind("t", "g", "earliest")

    def start_stream() -> None:
        execute(dsn, STREAM_START)
        timed_broker.rewind("t", "g", "latest")

    actions = [send, receive, receive, come_late, rewind]
    weights = [8, 6, 6, 2, 1]
    if message_type == "NORMAL":
        actions, weights = [*actions, start_stream], [*weights, 1]
    for action in by_chance.choices(actions, weights, k=100):
        action()
        clock.advance(SECOND)
    # As upkeep trims: some are gone, with their answers, and others before and behind them are there.
    execute(dsn, "delete from duewheel.lease where n % 5 = 2 and message_count > 0")
    expected: Counter[tuple[str, datetime]] = Counter(execute(dsn, LEASED))
    assert len(expected) > 30
    found = Counter(
        (message_id, entry.at)
        for message_id in sent
        for entry in timed_broker.history(message_id)
        if entry.state == "Inflight"
    )
    assert found == expected


def test_x08_leases_before_a_streams_start_are_in_the_history(topic: Broker, clock: Clock, dsn: str) -> None:
    sent = [topic.send("t", b"").message_id for _ in range(3)]
    consumer = topic.consumer("t", "g")
    for _ in sent:
        consumer.ack(consumer.receive(max_messages=1, invisible=MINUTE))
    clock.advance(MINUTE)
    execute(dsn, STREAM_START)
    consumer.ack(consumer.receive(max_messages=2, invisible=MINUTE))
    minutes = [[at for state, at, *_ in told(topic, one, "g") if state == "Inflight"] for one in sent]
    assert minutes == [[0, 1], [0, 1], [0]]


def test_x08_a_late_message_has_no_group_before_its_release(topic: Broker, clock: Clock) -> None:
    """A range that a consumer has acked reaches over its place."""
    consumer = topic.consumer("t", "g", name="me")
    with connected(topic.dsn, autocommit=False) as other:
        late = topic.send("t", b"late", connection=other).message_id
        clock.advance(SECOND)
        topic.send("t", b"other")
        clock.advance(MINUTE - SECOND)
        batch = consumer.receive(invisible=MINUTE)
        assert [message.body for message in batch] == [b"other"]
        consumer.ack(batch)
        other.commit()
    assert told(topic, late, "g") == []
    clock.advance(MINUTE)
    consumer.ack(consumer.receive(invisible=MINUTE))
    assert told(topic, late, "g") == [("Inflight", 2, 3, 1, "me"), ("Acked", 2, None, 1, "me")]
