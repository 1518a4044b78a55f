"""Retries (R01 to R15): the readable specification, a rule each."""

from __future__ import annotations

import itertools
import logging
import random
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from tests.acting import AT_ONCE, HOUR, MICROSECOND, MINUTE, SECOND, bodies, state, taken
from tests.clock import Clock
from tests.standing_time import StandingTime
from tests.waiting import PATIENCE_SECONDS, until

from duewheel.store.broker import Broker
from duewheel.store.consuming import push_consumer
from duewheel.store.consuming.consumer import Consumer
from duewheel.store.values.errors import InvalidArgument, LeaseLost
from duewheel.store.values.messages import Message
from duewheel.store.values.retry_policy import RetryPolicy

#: R05: the sixteen intervals of an unordered group.
INTERVALS = [
    10 * SECOND,
    30 * SECOND,
    1 * MINUTE,
    2 * MINUTE,
    3 * MINUTE,
    4 * MINUTE,
    5 * MINUTE,
    6 * MINUTE,
    7 * MINUTE,
    8 * MINUTE,
    9 * MINUTE,
    10 * MINUTE,
    20 * MINUTE,
    30 * MINUTE,
    1 * HOUR,
    2 * HOUR,
]


def fail_until_dead(consumer: Consumer, clock: Clock, intervals: list[timedelta]) -> None:
    """Fail one message over and over: it must come exactly after each interval, and then no more.

    Of many equal intervals the first and the last are looked into before their end.
    """
    for attempt, interval in enumerate(intervals, 1):
        (message,) = consumer.receive(invisible=HOUR)
        assert message.attempt == attempt
        consumer.nack(message)
        if attempt <= 20 or attempt == len(intervals):
            clock.advance(interval - MICROSECOND)
            assert not consumer.receive(), f"retry {attempt} came early"
            clock.advance(MICROSECOND)
        else:
            clock.advance(interval)
    (message,) = consumer.receive(invisible=HOUR)
    assert message.attempt == 1 + len(intervals)
    consumer.nack(message)
    clock.advance(10_000 * HOUR)
    assert not consumer.receive(), "came again after the last retry"


def called_with(broker: Broker, listener: Callable[[Message], Any]) -> str:
    """The id of a message that the listener was called with once, after its answer was written."""
    called = threading.Event()

    def noted(message: Message) -> Any:
        called.set()
        return listener(message)

    receipt = broker.send("t", b"x", delay=AT_ONCE)
    with broker.push_consumer("t", "g", noted):
        assert called.wait(PATIENCE_SECONDS)
    return receipt.message_id


def test_r01_r13_id_and_attempts_hold_over_all_retries(topic: Broker, clock: Clock) -> None:
    sent = topic.send("t", b"x", delay=AT_ONCE).message_id
    consumer = topic.consumer("t", "g")
    for retries in range(17):
        (message,) = consumer.receive()
        assert message.message_id == sent
        assert (message.reconsume_times, message.attempt) == (retries, retries + 1)
        consumer.nack(message)
        clock.advance(2 * HOUR)
    assert not consumer.receive()
    assert [dead.message_id for dead in topic.dead_letters("g")] == [sent]
    assert topic.find(sent) is not None


def test_r02_retries_in_clustering_only_broadcasting_continues(topic: Broker, clock: Clock) -> None:
    instances = [topic.consumer("t", "all", mode="broadcasting", name=name) for name in ("one", "two")]
    cluster = topic.consumer("t", "cluster")
    for body in (b"fails", b"is fine"):
        topic.send("t", body, delay=AT_ONCE)
    for instance in instances:
        failed, fine = instance.receive(invisible=MINUTE)
        assert (failed.body, fine.body) == (b"fails", b"is fine"), "every instance gets everything"
        instance.nack(failed, reason="no stock")
        if instance is instances[0]:
            instance.ack(fine)
        # Else it is never answered.
    cluster.nack(cluster.receive())
    clock.advance(24 * HOUR)
    topic.send("t", b"next", delay=AT_ONCE)
    for instance in instances:
        assert bodies(taken(instance)) == [b"next"], "what failed is not redelivered, the consumer goes on"
    assert sorted(bodies(taken(cluster))) == [b"fails", b"is fine", b"next"]


def test_r03_a_timeout_starts_a_retry(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    passing = StandingTime()
    monkeypatch.setattr(push_consumer, "time", passing)
    broker.create_topic("t")
    # It does not come again before the end of the test.
    broker.consumer("t", "g", retry=RetryPolicy.intervals([HOUR]))
    working, let_go = threading.Event(), threading.Event()

    def stuck(_: Message) -> str:
        working.set()
        let_go.wait(PATIENCE_SECONDS)
        return "success"

    sent = broker.send("t", b"x", delay=AT_ONCE).message_id
    with broker.push_consumer("t", "g", stuck, consume_timeout=MINUTE):
        assert working.wait(PATIENCE_SECONDS)
        passing.pass_by(61)
        until(lambda: state(broker, sent, "g") == "WaitingRetry", "the timeout to count as a failure")
        let_go.set()
    assert state(broker, sent, "g") == "WaitingRetry"


def test_r03_an_expired_lease_is_a_retry_or_a_dead_letter(topic: Broker, clock: Clock) -> None:
    sent = topic.send("t", b"x", delay=AT_ONCE).message_id
    consumer = topic.consumer("t", "g")
    for attempt in range(1, 18):
        (message,) = consumer.receive(invisible=MINUTE)
        assert message.attempt == attempt
        clock.advance(MINUTE)
    assert not consumer.receive()
    assert state(topic, sent, "g") == "DLQ"
    assert [dead.message_id for dead in topic.dead_letters("g")] == [sent]


def test_r04_the_interval_counts_from_the_failure(topic: Broker, clock: Clock) -> None:
    """6 s of consuming, an interval of 10 s, 5 s until it is polled: 21 s from delivery to delivery."""
    sent = topic.send("t", b"x", delay=AT_ONCE).message_id
    consumer = topic.consumer("t", "g")
    (first,) = consumer.receive()
    consumed_at = clock()
    clock.advance(6 * SECOND)
    consumer.nack(first)
    clock.advance(10 * SECOND - MICROSECOND)
    assert not consumer.receive(), "the interval counts from the failure, not from the delivery"
    clock.advance(MICROSECOND)
    topic.doorbells(["t"], ["g"])
    clock.advance(5 * SECOND)
    (second,) = consumer.receive()
    assert clock() - consumed_at == 21 * SECOND
    entries = [entry for entry in topic.history(sent) if entry.consumer_group == "g"]
    assert [(entry.state, entry.at - consumed_at) for entry in entries if entry.at] == [
        ("Inflight", 0 * SECOND),
        ("WaitingRetry", 6 * SECOND),
        ("Ready", 16 * SECOND),
        ("Inflight", 21 * SECOND),
    ]
    assert second.deliver_at == consumed_at + 16 * SECOND


def test_r05_sixteen_retries_at_exactly_these_intervals(topic: Broker, clock: Clock) -> None:
    sent = topic.send("t", b"x", delay=AT_ONCE).message_id
    fail_until_dead(topic.consumer("t", "g"), clock, INTERVALS)
    assert [dead.message_id for dead in topic.dead_letters("g")] == [sent]


def test_r06_above_16_every_further_retry_comes_after_two_hours(topic: Broker, clock: Clock) -> None:
    consumer = topic.consumer("t", "g", retry=RetryPolicy.unordered(20))
    topic.send("t", b"x", delay=AT_ONCE)
    fail_until_dead(consumer, clock, [*INTERVALS, *[2 * HOUR] * 4])


def test_r06_there_is_no_upper_bound(topic: Broker) -> None:
    topic.consumer("t", "g", retry=RetryPolicy.unordered(2**31 - 1))
    assert [group.retry.max_retries for group in topic.groups() if group.retry] == [2**31 - 1]


def test_r07_a_failed_ordered_message_blocks_its_group_only(timed_broker: Broker, clock: Clock) -> None:
    timed_broker.create_topic("t", message_type="FIFO", queues=1)
    consumer = timed_broker.consumer("t", "g")
    for group, body in (("a", b"a1"), ("a", b"a2"), ("b", b"b1"), ("b", b"b2")):
        timed_broker.send("t", body, message_group=group)
    first = {message.body: message for message in consumer.receive(invisible=HOUR)}
    assert list(first) == [b"a1", b"a2", b"b1", b"b2"]
    consumer.nack(first[b"a1"])
    consumer.ack([first[b"b1"], first[b"b2"]])
    timed_broker.send("t", b"b3", message_group="b")
    assert bodies(taken(consumer)) == [b"b3"], "a is blocked, b goes on"
    clock.advance(SECOND - MICROSECOND)
    assert taken(consumer) == []
    clock.advance(MICROSECOND)
    assert [(m.body, m.attempt) for m in taken(consumer)] == [(b"a1", 2), (b"a2", 1)]


def test_r07_ordered_retries_have_no_limit_unless_one_is_set(timed_broker: Broker, clock: Clock) -> None:
    timed_broker.create_topic("t", message_type="FIFO")
    consumer = timed_broker.consumer("t", "g")
    timed_broker.send("t", b"x", message_group="a")
    # An unordered one would be a dead letter after 17.
    for attempt in range(1, 21):
        (message,) = consumer.receive()
        assert message.attempt == attempt
        consumer.nack(message)
        clock.advance(SECOND)
    consumer = timed_broker.consumer("t", "limited", retry=RetryPolicy.ordered(max_retries=3))
    fail_until_dead(consumer, clock, [SECOND] * 3)
    assert RetryPolicy.ordered(max_retries=2**31 - 1) == RetryPolicy.ordered()


def test_r07_the_ordered_interval_is_10_to_30_000_milliseconds(timed_broker: Broker, clock: Clock) -> None:
    for milliseconds in (10, 30_000):
        name, interval = f"t{milliseconds}", timedelta(milliseconds=milliseconds)
        timed_broker.create_topic(name, message_type="FIFO")
        timed_broker.send(name, b"x", message_group="a")
        consumer = timed_broker.consumer(name, "g", retry=RetryPolicy.ordered(interval, max_retries=2))
        fail_until_dead(consumer, clock, [interval] * 2)
    for wrong in (9, 30_001):
        with pytest.raises(InvalidArgument, match="10 ms to 30 s"):
            RetryPolicy.ordered(timedelta(milliseconds=wrong))


@pytest.mark.slow
def test_r08_the_ordered_http_profile_is_288_times_a_minute(timed_broker: Broker, clock: Clock) -> None:
    timed_broker.create_topic("t", message_type="FIFO")
    timed_broker.send("t", b"x", message_group="a")
    consumer = timed_broker.consumer("t", "g", retry=RetryPolicy.http_ordered())
    fail_until_dead(consumer, clock, [MINUTE] * 288)


@pytest.mark.slow
def test_r09_the_unordered_http_profile_has_288_times_5_minutes(topic: Broker, clock: Clock) -> None:
    topic.send("t", b"x", delay=AT_ONCE)
    consumer = topic.consumer("t", "g", retry=RetryPolicy.http())
    fail_until_dead(consumer, clock, [5 * MINUTE] * 288)


def test_r03_r10_three_ways_for_a_listener_to_ask_for_a_retry(broker: Broker) -> None:
    broker.create_topic("t")
    broker.consumer("t", "g", retry=RetryPolicy.intervals([HOUR]))

    def fails(_: Message) -> str:
        raise RuntimeError("no stock")

    for listener in (lambda _: "reconsume_later", lambda _: None, fails):
        called = called_with(broker, listener)
        assert state(broker, called, "g") == "WaitingRetry"
    assert "no stock" in str(broker.history(called)[-1].reason)


def test_r11_a_listener_that_always_commits_has_no_retries(broker: Broker) -> None:
    def careless(_: Message) -> str:
        try:
            raise RuntimeError("no stock")
        except RuntimeError:
            return "success"

    broker.create_topic("t")
    assert state(broker, called_with(broker, careless), "g") == "Acked"


def test_r12_the_newest_consumer_decides_for_the_whole_group(
    timed_broker: Broker, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """Max retries, and on a FIFO topic the interval."""
    for name, message_type, old, new in (
        ("t", "DELAY", RetryPolicy.intervals([HOUR]), RetryPolicy.intervals([MINUTE, 2 * MINUTE])),
        ("fifo", "FIFO", RetryPolicy.ordered(5 * SECOND), RetryPolicy.ordered(30 * SECOND, max_retries=1)),
    ):
        timed_broker.create_topic(name, message_type=message_type)
        first = timed_broker.consumer(name, f"g-{name}", name="first", retry=old)
        with caplog.at_level(logging.WARNING, "duewheel.store"):
            timed_broker.consumer(name, f"g-{name}", name="second", retry=new)
            # One that asks for nothing changes nothing.
            timed_broker.consumer(name, f"g-{name}", name="third")
        (warning,) = [record.getMessage() for record in caplog.records]
        caplog.clear()
        assert str(old) in warning
        assert str(new) in warning
        assert "first" in warning
        (group,) = (group for group in timed_broker.groups() if group.topic == name)
        assert (group.retry, group.retry_set_by) == (new, "second")
        if name == "t":
            timed_broker.send(name, b"x", delay=AT_ONCE)
        else:
            timed_broker.send(name, b"x", message_group="a")
        # The first one has to go by it, too.
        assert new.max_retries is not None
        fail_until_dead(first, clock, list(new.waits))


def test_r13_a_message_that_is_given_back_has_used_up_no_attempt(topic: Broker, clock: Clock) -> None:
    consumer = topic.consumer("t", "g", retry=RetryPolicy.unordered(1))
    sent = [topic.send("t", body, delay=AT_ONCE) for body in ("a", "b", "c")]
    for _ in range(3):
        batch = consumer.receive()
        assert sorted((m.body, m.attempt) for m in batch) == [(b"a", 1), (b"b", 1), (b"c", 1)]
        consumer.give_back(batch[0])
        consumer.give_back(batch[1:], reason="no time")
        clock.advance(MICROSECOND)
    # Nor is the last attempt lost.
    consumer.nack(consumer.receive(), delay=AT_ONCE)
    for _ in range(3):
        batch = consumer.receive()
        assert {(message.attempt, message.reconsume_times) for message in batch} == {(2, 1)}
        assert sorted(message.message_id for message in batch) == sorted(one.message_id for one in sent)
        consumer.give_back(batch)
        with pytest.raises(LeaseLost, match=r"answered before \(returned\)"):
            consumer.give_back(batch)
        clock.advance(MICROSECOND)
    topic.tick("t")
    (group,) = topic.stats().topics[0].groups
    assert (group.inflight, group.waiting_retry) == (0, 0)
    assert not topic.dead_letters("g")
    batch = consumer.receive(invisible=SECOND)
    clock.advance(SECOND)
    with pytest.raises(LeaseLost):
        consumer.give_back(batch)
    assert not consumer.receive()
    assert len(topic.dead_letters("g")) == 3


def test_r07_a_message_that_is_given_back_keeps_its_place(timed_broker: Broker, clock: Clock) -> None:
    timed_broker.create_topic("steps", message_type="FIFO", queues=1)
    for body in ("a1", "a2", "b1", "a3"):
        timed_broker.send("steps", body, message_group=body[0])
    consumer = timed_broker.consumer("steps", "g")
    clock.advance(MICROSECOND)
    batch = consumer.receive()
    (second,) = (message for message in batch if message.body == b"a2")
    consumer.give_back(second, reason="no time")
    consumer.ack([message for message in batch if message.body in (b"a1", b"b1")])
    again = consumer.receive()
    assert [(message.body, message.attempt) for message in again] == [(b"a2", 1), (b"a3", 1)]
    reasons = {
        message.body: [
            entry.reason for entry in timed_broker.history(message.message_id) if entry.state == "Ready"
        ]
        for message in again
    }
    assert reasons[b"a2"][-1] == "no time"
    assert reasons[b"a3"][-1] == "one before it in its message group was given back"
    consumer.give_back(again)
    assert [(message.body, message.attempt) for message in consumer.receive()] == [(b"a2", 1), (b"a3", 1)]


def test_r14_dead_letters_are_kept_per_group_and_redriven(topic: Broker, clock: Clock) -> None:
    sent = topic.send("t", b"x", delay=AT_ONCE, key="k", tag="a", properties={"p": 1}).message_id
    consumer = topic.consumer("t", "g", retry=RetryPolicy.unordered(1))
    other = topic.consumer("t", "other")
    while batch := consumer.receive():
        consumer.nack(batch, reason=f"failure {batch[0].attempt}")
        clock.advance(2 * HOUR)
    (dead,) = topic.dead_letters("g")
    assert (dead.topic, dead.message_id, dead.key, dead.tag, dead.properties, dead.body) == (
        "t", sent, "k", "a", {"p": 1}, b"x",
    )  # fmt: skip
    assert (dead.attempt, dead.reason) == (2, "failure 2")
    assert topic.dead_letters("other") == []
    assert bodies(taken(other)) == [b"x"]
    redriven = topic.redrive("g")
    assert (redriven.matched, redriven.redriven) == (1, 1)
    assert [(m.message_id, m.body) for m in taken(consumer)] == [(sent, b"x")]
    assert taken(other) == [], "another group has nothing to do with it"


#: R15: every move there is. Before the first is what all groups share: the message waits and is released.
MOVES = {
    ("Ready", "Inflight"),
    ("Inflight", "Acked"),
    ("Inflight", "WaitingRetry"),
    ("Inflight", "DLQ"),
    ("WaitingRetry", "Ready"),
}


@pytest.mark.slow
def test_r15_exactly_these_states_and_moves(topic: Broker, clock: Clock) -> None:
    """Messages are answered at random, in time and too late, until nothing moves any more."""
    chance = random.Random(15)
    consumer = topic.consumer("t", "g")
    sent = [receipt.message_id for receipt in topic.send_many("t", [{"body": b"x", "delay": AT_ONCE}] * 30)]
    held: list[Message] = []
    for _ in range(200):
        held += consumer.receive(chance.choice([1, 3, 10]), chance.choice([SECOND, MINUTE, HOUR]))
        chance.shuffle(held)
        for message in held[: chance.randrange(4)]:
            answer = chance.choice([consumer.ack, consumer.nack, consumer.nack, consumer.nack])
            try:
                answer(message)
            except LeaseLost:
                # Too late, or answered before: nothing moves.
                continue
        clock.advance(chance.choice([AT_ONCE, SECOND, 30 * SECOND, 10 * MINUTE]))
    for _ in range(20):
        clock.advance(2 * HOUR)
        consumer.nack(consumer.receive(100))
    final = {message_id: topic.history(message_id) for message_id in sent}
    moves = set()
    for message_id, entries in final.items():
        walk = [entry.state for entry in entries]
        assert walk[:3] == ["Initialized", "Timing", "Ready"], message_id
        assert walk[-1] in ("Acked", "DLQ"), walk
        moves |= set(itertools.pairwise(walk[2:]))
    assert moves == MOVES
    for message in held:
        # Refused, or the same answer again.
        with suppress(LeaseLost):
            consumer.nack(message)
    clock.advance(1_000 * HOUR)
    assert not consumer.receive(), "a final state is final"
    assert {message_id: topic.history(message_id) for message_id in sent} == final
