"""Delay levels: RocketMQ's table, and a topic's own."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.clock import NOW
from tests.waiting import ask, connected

from duewheel.store.broker import Broker
from duewheel.store.values.errors import DelayOutOfRange, TopicExists
from duewheel.store.values.topics import Topic

SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)

ROCKETMQ = tuple(
    timedelta(seconds=seconds)
    for seconds in (1, 5, 10, 30, *(60 * minutes for minutes in (*range(1, 11), 20, 30)), 3600, 7200)
)


def found(broker: Broker, name: str = "t") -> Topic:
    (topic,) = (topic for topic in broker.topics() if topic.name == name)
    return topic


def delay_of(broker: Broker, level: int, topic: str = "t") -> timedelta:
    (one,) = broker.send_many(topic, [{"body": b"", "delay_level": level}])
    receipt = broker.send(topic, b"", delay_level=level)
    assert one.deliver_at == receipt.deliver_at
    return receipt.deliver_at - NOW


def test_l01_a_topic_has_eighteen_levels_unless_told_otherwise(timed_broker: Broker) -> None:
    timed_broker.create_topic("t")
    assert found(timed_broker).delay_levels == ROCKETMQ
    assert [delay_of(timed_broker, level) for level in range(1, 20)] == [*ROCKETMQ, 2 * HOUR]


def test_l04_a_topic_has_the_levels_it_was_given(timed_broker: Broker) -> None:
    levels = (timedelta(milliseconds=1), timedelta(0), timedelta(days=1, microseconds=1), SECOND)
    timed_broker.create_topic("t", max_delay=timedelta(days=2), delay_levels=levels)
    timed_broker.create_topic("plain")
    assert found(timed_broker).delay_levels == levels
    assert [delay_of(timed_broker, level) for level in range(7)] == [timedelta(0), *levels, SECOND, SECOND]
    assert delay_of(timed_broker, 4, "plain") == 30 * SECOND


def test_l04_the_levels_of_a_topic_can_be_changed(timed_broker: Broker) -> None:
    timed_broker.create_topic("t")
    waiting = timed_broker.send("t", b"", delay_level=1)
    timed_broker.update_topic("t", delay_levels=[HOUR])
    timed_broker.update_topic("t", retention=HOUR)
    assert found(timed_broker).delay_levels == (HOUR,)
    assert delay_of(timed_broker, 18) == HOUR
    kept = timed_broker.find(waiting.message_id)
    assert kept is not None
    assert kept.deliver_at == NOW + SECOND


def test_l04_making_a_topic_again_needs_the_same_levels(timed_broker: Broker) -> None:
    timed_broker.create_topic("t", delay_levels=[HOUR])
    timed_broker.create_topic("t", delay_levels=[HOUR])
    timed_broker.create_topic("plain", delay_levels=ROCKETMQ)
    timed_broker.create_topic("plain")
    with pytest.raises(TopicExists, match="delay_levels"):
        timed_broker.create_topic("t")


@pytest.mark.parametrize("policy", ["reject", "deliver"])
def test_d04_a_level_over_the_maximum_is_out_of_range(timed_broker: Broker, policy: str) -> None:
    timed_broker.create_topic("t", max_delay=HOUR, out_of_range=policy, delay_levels=[HOUR, 2 * HOUR])
    assert delay_of(timed_broker, 1) == HOUR
    if policy == "deliver":
        assert delay_of(timed_broker, 2) == timedelta(0)
    else:
        with pytest.raises(DelayOutOfRange, match="limit of topic"):
            timed_broker.send("t", b"", delay_level=2)


def test_l04_levels_in_sql(timed_broker: Broker) -> None:
    with connected(timed_broker.dsn) as connection:
        ask(
            connection, "select duewheel.create_topic('t', delay_levels => array['1 s', '1 day']::interval[])"
        )
        ask(connection, "select duewheel.update_topic('t', delay_levels => array['90 s']::interval[])")
        ((levels,),) = ask(connection, "select delay_levels from duewheel.topics")
    assert levels == [timedelta(seconds=90)]
