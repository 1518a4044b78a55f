"""Delay levels (L01 to L06): the readable specification, a rule each."""

from __future__ import annotations

import signal
import subprocess
import sys
from datetime import timedelta

import pytest
from tests.acting import HOUR, MICROSECOND, MILLISECOND, MINUTE, SECOND, bodies, rows, state, taken
from tests.clock import Clock
from tests.waiting import until

from duewheel.store.broker import Broker
from duewheel.store.values.errors import InvalidDelayLevel

LEVELS = {
    1: SECOND,
    2: 5 * SECOND,
    3: 10 * SECOND,
    4: 30 * SECOND,
    5: 1 * MINUTE,
    6: 2 * MINUTE,
    7: 3 * MINUTE,
    8: 4 * MINUTE,
    9: 5 * MINUTE,
    10: 6 * MINUTE,
    11: 7 * MINUTE,
    12: 8 * MINUTE,
    13: 9 * MINUTE,
    14: 10 * MINUTE,
    15: 20 * MINUTE,
    16: 30 * MINUTE,
    17: 1 * HOUR,
    18: 2 * HOUR,
}


@pytest.mark.parametrize(("level", "delay"), LEVELS.items())
def test_l01_eighteen_levels(topic: Broker, clock: Clock, level: int, delay: timedelta) -> None:
    receipt = topic.send("t", b"x", delay_level=level)
    (from_many,) = topic.send_many("t", [{"body": b"x", "delay_level": level}])
    ((from_sql,),) = rows(
        topic,
        "select deliver_at from duewheel.send('t', 'x'::text, delay_level => %s, now => %s)",
        level,
        clock(),
    )
    assert receipt.deliver_at == from_many.deliver_at == from_sql == clock() + delay
    consumer = topic.consumer("t", "g")
    clock.advance(delay - MICROSECOND)
    assert taken(consumer) == []
    clock.advance(MICROSECOND)
    assert len(taken(consumer)) == 3


def test_l02_level_zero_is_not_delayed(topic: Broker, clock: Clock) -> None:
    assert topic.send("t", b"x", delay_level=0).deliver_at == clock()
    assert bodies(taken(topic.consumer("t", "g"))) == [b"x"]


@pytest.mark.parametrize("level", [19, 100, 2**31 - 1])
def test_l03_above_18_is_treated_as_18(topic: Broker, clock: Clock, level: int) -> None:
    assert topic.send("t", b"x", delay_level=level).deliver_at == clock() + 2 * HOUR


@pytest.mark.parametrize("level", [-1, -(2**31)])
def test_l03_below_0_is_an_error(topic: Broker, level: int) -> None:
    with pytest.raises(InvalidDelayLevel, match=f"the delay level is {level}"):
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


TURN_A_WHEEL = """
import sys, threading
from duewheel.store.broker import Broker
Broker(sys.argv[1]).wheel().run(threading.Event())
"""


def test_l06_the_timers_progress_survives_a_restart(broker: Broker, dsn: str) -> None:
    """The wheel's process is killed; another one goes on where it stood."""
    broker.create_topic("t", queues=1, granularity=MILLISECOND)
    first = broker.send("t", b"first", delay=100 * MILLISECOND)
    waits = broker.send("t", b"waits", delay=HOUR)
    for turn, receipt in enumerate([first, None]):
        meanwhile = receipt or broker.send("t", b"due while nobody turns", delay=MILLISECOND)
        wheel = subprocess.Popen([sys.executable, "-c", TURN_A_WHEEL, dsn])
        try:
            until(lambda: state(broker, meanwhile.message_id) == "Ready", f"the release of turn {turn}")  # noqa: B023
        finally:
            wheel.send_signal(signal.SIGKILL)
            wheel.wait()
    assert state(broker, waits.message_id) == "Timing"
    assert bodies(taken(broker.consumer("t", "g"))) == [b"first", b"due while nobody turns"]
