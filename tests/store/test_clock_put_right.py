"""A lease of a clock that was ahead lasts no longer than its length once the clock is right."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.acting import HOUR, MINUTE, SECOND, bodies, rows, send, states
from tests.clock import NOW, Clock
from tests.waiting import ask, connected

from duewheel.store.broker import Broker

AHEAD = NOW + 8 * HOUR


def takes(topic: Broker, clock: Clock) -> None:
    """A lease of a minute, of a consumer that dies while the clock is ahead."""
    clock.set(AHEAD)
    assert bodies(topic.consumer("t", "g").receive()) == [b"one"]


def extends(topic: Broker, clock: Clock) -> None:
    """A lease that was taken before, and is extended by a minute while the clock is ahead."""
    consumer = topic.consumer("t", "g")
    batch = consumer.receive(invisible=12 * HOUR)
    clock.set(AHEAD)
    consumer.answer_held("extend", batch, invisible=MINUTE)


def extends_behind_the_mark(topic: Broker, clock: Clock) -> None:
    """A lease that is extended by the right clock, after consumers looked at ends up to AHEAD."""
    consumer = topic.consumer("t", "g")
    batch = consumer.receive(invisible=12 * HOUR)
    send(topic, "two")
    topic.tick("t")
    assert bodies(consumer.receive()) == [b"two"]
    clock.set(AHEAD)
    topic.tick("t")
    consumer.ack(consumer.receive())
    rows(topic, "select duewheel.revive_chunk(%s, %s, %s)", consumer.group_id, consumer.topic_id, clock())
    clock.set(NOW + SECOND)
    consumer.answer_held("extend", batch, invisible=MINUTE)


@pytest.mark.parametrize("wheel", [False, True])
@pytest.mark.parametrize("dies", [takes, extends, extends_behind_the_mark])
def test_x14_a_lease_ends_on_time_once_the_clock_is_right(
    topic: Broker, clock: Clock, dies: Callable[[Broker, Clock], None], wheel: bool
) -> None:
    topic.consumer("t", "g")
    send(topic, "one")
    topic.tick("t")
    dies(topic, clock)
    clock.set(NOW + 2 * SECOND)
    if wheel:
        ((group_id, topic_id, _),) = rows(
            topic, "select * from duewheel.lease_ends_of_topics(0, 100, %s)", clock()
        )
        rows(topic, "select duewheel.revive_chunk(%s, %s, %s)", group_id, topic_id, clock())
        assert not rows(topic, "select * from duewheel.lease_ends_of_topics(0, 100, %s)", clock())
    else:
        topic.tick("t")
    clock.advance(55 * SECOND)
    topic.tick("t")
    assert not topic.consumer("t", "g").receive(), "the lease lasts a minute"
    clock.advance(10 * SECOND)
    topic.tick("t")
    assert topic.consumer("t", "g").receive()


def test_x11_a_lease_of_a_clock_a_day_ahead_is_taken_over(topic: Broker, clock: Clock) -> None:
    clock.set(NOW + 24 * HOUR)
    consumer = topic.consumer("t", "g", name="c")
    send(topic, "one")
    topic.tick("t")
    assert consumer.receive()
    clock.set(NOW)
    assert bodies(topic.take_over(topic.consumer("t", "g", name="c"))) == [b"one"]


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
@pytest.mark.parametrize("count", [1, 12])
def test_x27_a_sender_with_an_old_snapshot_is_heard(broker: Broker, isolation: str, count: int) -> None:
    """The sender does not see the tick of a clock that was ahead, and leaves no pointer behind it."""
    now = datetime.now(UTC)
    broker.create_topic("t", queues=1)
    consumer = broker.consumer("t", "g")
    rows(broker, "create or replace function duewheel.late_limit() returns integer language sql return 5")
    with connected(broker.dsn, autocommit=False) as sender:
        ask(sender, f"set transaction isolation level {isolation}")
        ask(sender, "select from duewheel.tick")
        with Broker(broker.dsn, clock=lambda: now + 8 * HOUR) as ahead:
            send(ahead, "ahead")
            ahead.tick("t")
        for n in range(count):
            broker.send("t", f"{n}", delay=HOUR, connection=sender)
        sender.commit()
    # The wheel's survey finds the topic, though nothing is due for an hour.
    due = rows(broker, "select topic_id from duewheel.due_topics(0, 100, null, clock_timestamp())")
    assert due == [(consumer.topic_id,)]
    broker.tick("t")
    assert not rows(broker, "select topic_id from duewheel.due_topics(0, 100, null, clock_timestamp())")
    early = consumer.receive()
    assert bodies(early) == [b"ahead"]
    consumer.ack(early)
    # By a clock that is not yet behind the tick.
    with Broker(broker.dsn, clock=lambda: now + 1.1 * HOUR) as later:
        later.tick("t")
        got = bodies(later.consumer("t", "g").receive())
        assert sorted(got) == sorted(b"%d" % n for n in range(count))
        later.tick("t")
        assert not later.consumer("t", "g").receive()


@pytest.mark.parametrize("message_type", ["DELAY", "FIFO"])
def test_r04_a_message_of_a_clock_ahead_is_retried_by_the_clock(
    timed_broker: Broker, clock: Clock, message_type: str
) -> None:
    timed_broker.create_topic("t", message_type=message_type, queues=1)
    consumer = timed_broker.consumer("t", "g")
    clock.set(AHEAD)
    due: dict[str, Any] = {"message_group": "a"} if message_type == "FIFO" else {"delay": 0 * HOUR}
    sent = timed_broker.send("t", b"one", **due)
    timed_broker.tick("t")
    clock.set(NOW)
    consumer.nack(consumer.receive())
    clock.advance(MINUTE)
    timed_broker.tick("t")
    assert bodies(consumer.receive()) == [b"one"]
    assert "WaitingRetry" in states(timed_broker, sent.message_id, "g")


def test_x27_a_lease_that_an_empty_receive_shortens_ends(timed_broker: Broker, clock: Clock) -> None:
    """A receive from a FIFO topic enters a queue whether it finds messages there or not."""
    timed_broker.create_topic("t", message_type="FIFO", queues=1)
    consumer = timed_broker.consumer("t", "g")
    clock.set(AHEAD)
    timed_broker.send("t", b"one", message_group="a")
    timed_broker.tick("t")
    assert bodies(consumer.receive(invisible=10 * SECOND)) == [b"one"]
    clock.set(NOW)
    # Without a tick, as beside a wheel, which looks once a minute for clocks that were ahead.
    receive = "select 1 from duewheel.receive_batch(%s, %s, 1, '1 minute', 'c', 0, true, %s)"
    assert not rows(timed_broker, receive, consumer.group_id, consumer.topic_id, clock())
    clock.advance(MINUTE)
    timed_broker.tick("t")
    assert bodies(consumer.receive()) == [b"one"]


def test_x27_an_older_lease_of_a_clock_ahead_ends(topic: Broker, clock: Clock) -> None:
    """It was taken while ended leases waited to be revived, so no mark shows that the clock was ahead."""
    consumer = topic.consumer("t", "g")
    receive = "select 1 from duewheel.receive_batch(%s, %s, 1, '1 minute', 'c', 0, true, %s)"
    for text in ("first", "held", "after"):
        send(topic, text)
    topic.tick("t")
    assert rows(topic, receive, consumer.group_id, consumer.topic_id, clock())
    clock.set(AHEAD)
    assert rows(topic, receive, consumer.group_id, consumer.topic_id, clock())
    clock.set(NOW + SECOND)
    assert rows(topic, receive, consumer.group_id, consumer.topic_id, clock())
    for _ in range(3):
        clock.advance(MINUTE)
        topic.tick("t")
    assert sorted(bodies(consumer.receive())) == [b"after", b"first", b"held"]
