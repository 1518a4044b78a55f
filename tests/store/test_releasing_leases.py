"""An operator ends the lease of a consumer that hangs, and makes waiting retries due now."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from tests.acting import HOUR, MINUTE, SECOND
from tests.clock import Clock

from duewheel.store import InvalidArgument, LeaseLost, RetryPolicy, UnknownGroup
from duewheel.store.broker import Broker

TYPES: dict[str, dict[str, Any]] = {"NORMAL": {}, "FIFO": {"message_group": "m"}}


def policy(message_type: str, retries: int = 3) -> RetryPolicy:
    return (
        RetryPolicy.ordered(timedelta(seconds=30), retries)
        if message_type == "FIFO"
        else RetryPolicy(retries, (HOUR,))
    )


@pytest.mark.parametrize("message_type", TYPES)
def test_a_released_lease_is_lost_and_its_messages_are_ready(
    timed_broker: Broker, clock: Clock, message_type: str
) -> None:
    timed_broker.create_topic("t", message_type=message_type, queues=1)
    hung, other = (timed_broker.consumer("t", "g", name=name) for name in ("hung", "other"))
    sent = timed_broker.send("t", b"", **TYPES[message_type])
    batch = hung.receive(invisible=HOUR)
    clock.advance(MINUTE)
    assert len(other.receive()) == 0
    (lease,) = timed_broker.leases(topic="t", group="g")
    assert (lease.consumer, lease.messages) == ("hung", 1)
    released_at = clock()
    assert timed_broker.release_lease(lease.lease_id, "its machine is gone") == 1
    assert timed_broker.leases() == []
    assert timed_broker.release_lease(lease.lease_id) is None
    for answer in (hung.ack, hung.nack, hung.give_back):
        with pytest.raises(LeaseLost, match="ended at"):
            answer(batch)
    clock.advance(SECOND)
    (again,) = other.receive()
    assert (again.message_id, again.attempt) == (sent.message_id, 2)
    other.ack(again)
    states = [one for one in timed_broker.history(sent.message_id) if one.consumer_group == "g"]
    assert [one.state for one in states if one.state != "Ready"] == [
        "Inflight",
        "WaitingRetry",
        "Inflight",
        "Acked",
    ]
    assert states[0].until_at == released_at
    waiting = next(one for one in states if one.state == "WaitingRetry")
    assert waiting.reason == "its lease was released: its machine is gone"


def test_only_a_lease_that_runs_is_released(timed_broker: Broker, clock: Clock) -> None:
    timed_broker.create_topic("t", message_type="NORMAL", queues=1)
    consumer = timed_broker.consumer("t", "g", retry=RetryPolicy(0, (MINUTE,)))
    timed_broker.send_many("t", [{"body": b"%d" % n} for n in range(4)])
    acked, ended = consumer.receive(1), consumer.receive(1, invisible=MINUTE)
    first, second = sorted(timed_broker.leases(), key=lambda one: one.lease_id)
    consumer.ack(acked)
    clock.advance(HOUR)
    assert [timed_broker.release_lease(one.lease_id) for one in (first, second)] == [None, None]
    assert timed_broker.release_lease("1.1.0.999.1") is None
    for wrong in ("", "1.2.3", "1.1.0.0.1; drop", "9999999999.1.0.0.1"):
        with pytest.raises(InvalidArgument):
            timed_broker.release_lease(wrong)
    with pytest.raises(LeaseLost):
        consumer.ack(ended)
    # What was answered before stays so; without a retry left the rest is dead.
    taken = consumer.receive(2)
    consumer.ack(taken[0])
    (lease,) = timed_broker.leases()
    assert timed_broker.release_lease(lease.lease_id) == 1
    assert [one.body for one in timed_broker.dead_letters("g")] == [b"1", b"3"]
    instance = timed_broker.consumer("t", "all", mode="broadcasting", name="one")
    batch = instance.receive()
    (lease,) = timed_broker.leases()
    with pytest.raises(InvalidArgument, match="broadcasting"):
        timed_broker.release_lease(lease.lease_id)
    instance.ack(batch)


@pytest.mark.parametrize("message_type", TYPES)
def test_a_waiting_retry_is_due_now_and_loses_no_attempt(
    timed_broker: Broker, clock: Clock, message_type: str
) -> None:
    timed_broker.create_topic("t", message_type=message_type, queues=1)
    consumer = timed_broker.consumer("t", "g", retry=policy(message_type))
    sent = timed_broker.send("t", b"", **TYPES[message_type])
    consumer.nack(consumer.receive(), reason="no paper")
    clock.advance(timedelta(seconds=5))
    assert len(consumer.receive()) == 0
    assert timed_broker.retry_now("g", [sent.message_id]) == [sent.message_id]
    clock.advance(timedelta(milliseconds=10))
    (again,) = consumer.receive()
    assert (again.message_id, again.attempt) == (sent.message_id, 2)
    numbers = timed_broker.stats().topics[0].groups[0]
    assert (numbers.inflight, numbers.waiting_retry) == (1, 0)
    assert timed_broker.retry_now("g", [sent.message_id]) == [], "it is in flight"
    consumer.nack(again, reason="no ink")
    # It is the second retry that waits now, as if the first had come at its instant.
    assert timed_broker.retry_now("g", [sent.message_id]) == [sent.message_id]
    clock.advance(timedelta(milliseconds=10))
    (again,) = consumer.receive()
    assert again.attempt == 3
    consumer.ack(again)
    states = [one for one in timed_broker.history(sent.message_id) if one.consumer_group == "g"]
    assert [one.state for one in states].count("Inflight") == 3
    assert "Deleted" not in {one.state for one in states}
    reasons = [one.reason for one in states if one.state == "WaitingRetry"]
    if message_type == "FIFO":
        assert reasons == ["no paper", "no ink"]
    else:
        assert reasons == ["no paper", "retried now: no paper", "no ink", "retried now: no ink"]


def test_retries_of_one_group_are_due_now_and_others_wait(timed_broker: Broker, clock: Clock) -> None:
    for topic in ("a", "b"):
        timed_broker.create_topic(topic, message_type="NORMAL", queues=1)
    ids = []
    for topic in ("a", "b"):
        consumers = [timed_broker.consumer(topic, group, retry=policy("NORMAL")) for group in ("g", "h")]
        ids += [timed_broker.send(topic, b"").message_id for _ in range(2)]
        for consumer in consumers:
            consumer.nack(consumer.receive(2))
    clock.advance(MINUTE)
    asked = [*ids[1:], ids[1], "00" * 22]
    assert sorted(timed_broker.retry_now("g", asked)) == sorted(ids[1:])
    clock.advance(MINUTE)
    came = {
        group: sum(len(timed_broker.consumer(topic, group).receive(9)) for topic in ("a", "b"))
        for group in ("g", "h")
    }
    assert came == {"g": 3, "h": 0}
    with pytest.raises(UnknownGroup):
        timed_broker.retry_now("nope", ids)
    with pytest.raises(InvalidArgument):
        timed_broker.retry_now("g", [])


def test_a_moved_message_is_retried_now_by_each_of_its_ids(timed_broker: Broker, clock: Clock) -> None:
    timed_broker.create_topic("t", queues=1)
    consumer = timed_broker.consumer("t", "g", retry=policy("NORMAL"))
    first = timed_broker.send("t", b"", delay=HOUR).message_id
    timed_broker.reschedule(first, delay=MINUTE)
    clock.advance(HOUR)
    consumer.nack(consumer.receive())
    clock.advance(MINUTE)
    assert timed_broker.retry_now("g", [first]) == [first]
    # It is taken back although it is due now.
    assert timed_broker.rewind("t", "g", "earliest").retries_recalled == 1
    clock.advance(2 * HOUR)
    (again,) = consumer.receive(9)
    assert again.attempt == 1
