"""Delay levels (L01 to L06): the readable specification, a rule each."""

from __future__ import annotations

import pytest
from tests.acting import HOUR, MICROSECOND, MILLISECOND, MINUTE, SECOND, bodies, rows, state, taken
from tests.clock import Clock
from tests.turning import wheel_process
from tests.waiting import until

from duewheel.store.broker import Broker
from duewheel.store.values.errors import InvalidDelayLevel

LEVELS = [
    *(seconds * SECOND for seconds in (1, 5, 10, 30)),
    *(minutes * MINUTE for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120)),
]


def test_l01_eighteen_levels(topic: Broker, clock: Clock) -> None:
    """By each way to send; level 1 is a second, level 18 two hours."""
    begins_at = clock()
    from_sql = "select deliver_at from duewheel.send('t', 'x'::text, delay_level => %s, now => %s)"
    for level, delay in enumerate(LEVELS, 1):
        receipt = topic.send("t", b"x", delay_level=level)
        (from_many,) = topic.send_many("t", [{"body": b"x", "delay_level": level}])
        assert rows(topic, from_sql, level, begins_at) == [(begins_at + delay,)]
        assert receipt.deliver_at == from_many.deliver_at == begins_at + delay
    consumer = topic.consumer("t", "g")
    for delay in LEVELS:
        clock.set(begins_at + delay - MICROSECOND)
        assert taken(consumer) == []
        clock.set(begins_at + delay)
        assert len(taken(consumer)) == 3


def test_l02_level_zero_is_not_delayed(topic: Broker, clock: Clock) -> None:
    assert topic.send("t", b"x", delay_level=0).deliver_at == clock()
    assert bodies(taken(topic.consumer("t", "g"))) == [b"x"]


def test_l03_above_18_is_treated_as_18_and_below_0_is_an_error(topic: Broker, clock: Clock) -> None:
    for level in (19, 2**31 - 1):
        assert topic.send("t", b"x", delay_level=level).deliver_at == clock() + 2 * HOUR
    for level in (-1, -(2**31)):
        with pytest.raises(InvalidDelayLevel, match=f"; got {level}"):
            topic.send("t", b"x", delay_level=level)


def test_l04_the_table_can_be_configured(timed_broker: Broker, clock: Clock) -> None:
    """Per topic, so one team's table does not become another's; and as a command."""
    timed_broker.create_topic("own", delay_levels=[MINUTE, 90 * MINUTE])
    timed_broker.create_topic("default")
    delays = [timed_broker.send("own", b"x", delay_level=level).deliver_at - clock() for level in range(5)]
    assert delays == [0 * MINUTE, MINUTE, 90 * MINUTE, 90 * MINUTE, 90 * MINUTE]
    timed_broker.update_topic("own", delay_levels=[SECOND])
    assert timed_broker.send("own", b"x", delay_level=1).deliver_at == clock() + SECOND
    assert timed_broker.send("default", b"x", delay_level=1).deliver_at == clock() + SECOND
    assert {topic.name: len(topic.delay_levels) for topic in timed_broker.topics()} == {
        "default": 18,
        "own": 1,
    }


def test_l05_a_released_message_is_as_if_it_had_never_waited(timed_broker: Broker, clock: Clock) -> None:
    what = {"key": "4711", "tag": "unpaid", "properties": {"shop": "a"}, "message_group": "customer 1"}
    timed_broker.create_topic("normal", message_type="NORMAL", queues=8)
    timed_broker.create_topic("delayed", message_type="DELAY", queues=8)
    timed_broker.send("normal", b"x", **what)
    timed_broker.send("delayed", b"x", delay_level=18, **what)
    clock.advance(2 * HOUR)
    (never_waited,) = timed_broker.consumer("normal", "g").receive()
    (waited,) = timed_broker.consumer("delayed", "g").receive()
    assert (never_waited.topic, waited.topic) == ("normal", "delayed")
    for name in ("key", "tag", "properties", "message_group", "body", "attempt", "reconsume_times"):
        assert getattr(waited, name) == getattr(never_waited, name), name
    # A message group always falls into the same queue: it is the queue it would have had.
    assert waited.lease.queue == never_waited.lease.queue
    assert waited.asked_at is None


def test_l06_the_timers_progress_survives_a_restart(broker: Broker, dsn: str) -> None:
    """The wheel's process is killed; another one goes on where it stood."""
    broker.create_topic("t", queues=1, granularity=MILLISECOND)
    waits = broker.send("t", b"waits", delay=HOUR)
    for body, delay in ((b"first", 100), (b"due while nobody turns", 1)):
        sent = broker.send("t", body, delay=delay * MILLISECOND)
        with wheel_process(dsn):
            until(lambda: state(broker, sent.message_id) == "Ready", "its release")  # noqa: B023
    assert state(broker, waits.message_id) == "Timing"
    assert bodies(taken(broker.consumer("t", "g"))) == [b"first", b"due while nobody turns"]
