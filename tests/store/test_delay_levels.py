"""Delay levels: RocketMQ's table, and a topic's own."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.acting import AT_ONCE, HOUR, SECOND
from tests.clock import NOW
from tests.waiting import ask, connected

from duewheel.store.broker import Broker
from duewheel.store.values.errors import DelayOutOfRange, TopicExists


def delay_of(broker: Broker, level: int, topic: str = "t") -> timedelta:
    (one,) = broker.send_many(topic, [{"body": b"", "delay_level": level}])
    receipt = broker.send(topic, b"", delay_level=level)
    assert one.deliver_at == receipt.deliver_at
    return receipt.deliver_at - NOW


def test_l04_a_topic_has_its_levels_until_they_are_changed(timed_broker: Broker) -> None:
    levels = (timedelta(milliseconds=1), AT_ONCE, timedelta(days=1, microseconds=1), SECOND)
    for _ in range(2):
        timed_broker.create_topic("t", max_delay=timedelta(days=2), delay_levels=levels)
    with pytest.raises(TopicExists, match="delay_levels"):
        timed_broker.create_topic("t", max_delay=timedelta(days=2))
    assert [topic.delay_levels for topic in timed_broker.topics()] == [levels]
    assert [delay_of(timed_broker, level) for level in range(7)] == [AT_ONCE, *levels, SECOND, SECOND]
    waiting = timed_broker.send("t", b"", delay_level=3)
    timed_broker.update_topic("t", delay_levels=[HOUR])
    timed_broker.update_topic("t", retention=HOUR)
    assert [delay_of(timed_broker, level) for level in (1, 18)] == [HOUR, HOUR]
    kept = timed_broker.find(waiting.message_id)
    assert kept is not None
    assert kept.deliver_at == waiting.deliver_at
    with connected(timed_broker.dsn) as connection:
        ask(
            connection,
            "select duewheel.create_topic('sql', delay_levels => array['1 s', '1 day']::interval[])",
        )
        ask(connection, "select duewheel.update_topic('sql', delay_levels => array['90 s']::interval[])")
        levels_of = "select delay_levels from duewheel.topics where topic = 'sql'"
        assert ask(connection, levels_of) == [([timedelta(seconds=90)],)]


def test_d04_a_level_over_the_maximum_is_out_of_range(timed_broker: Broker) -> None:
    for name in ("reject", "deliver"):
        timed_broker.create_topic(name, max_delay=HOUR, out_of_range=name, delay_levels=[HOUR, 2 * HOUR])
        assert delay_of(timed_broker, 1, name) == HOUR
    assert delay_of(timed_broker, 2, "deliver") == AT_ONCE
    with pytest.raises(DelayOutOfRange, match="limit of topic"):
        timed_broker.send("reject", b"", delay_level=2)
