"""What upkeep forgets while the clock of the server is ahead, and is put right later."""

from __future__ import annotations

import pytest
from tests.acting import AT_ONCE, DAY, HOUR, MINUTE, SECOND, taken
from tests.clock import Clock

from duewheel.store import RecallOutcome
from duewheel.store.broker import Broker
from duewheel.store.consuming.consumer import Consumer

pytestmark = pytest.mark.owner


def bodies(consumer: Consumer) -> list[bytes]:
    return [message.body for message in taken(consumer)]


@pytest.mark.parametrize("ahead_minutes", [0, 30])
def test_x27_a_clock_that_was_ahead_loses_nothing_that_is_sent_later(
    timed_broker: Broker, clock: Clock, ahead_minutes: int
) -> None:
    """By more than the retention, in one round of upkeep or for so long that it is believed."""
    timed_broker.create_topic("quiet", queues=1)
    group = timed_broker.consumer("quiet", "g")
    timed_broker.maintain()
    timed_broker.send("quiet", b"before", delay=AT_ONCE)
    clock.advance(SECOND)
    (before,) = group.receive()
    group.nack([before], delay=AT_ONCE)
    clock.advance(SECOND)
    group.ack(group.receive())
    for _ in range(3):
        clock.advance(DAY)
        timed_broker.maintain()
    right = clock()
    clock.set(right + 4 * DAY)
    timed_broker.maintain()
    for _ in range(ahead_minutes // 15):
        clock.set(clock() + 15 * MINUTE)
        timed_broker.maintain()
    clock.set(right + SECOND)
    timed_broker.send("quiet", b"after", delay=AT_ONCE)
    clock.advance(SECOND)
    messages = group.receive()
    assert [message.body for message in messages] == [b"after"]
    group.nack(messages, delay=AT_ONCE)
    clock.advance(SECOND)
    assert bodies(group) == [b"after"]


def test_x27_a_recall_holds_and_a_group_behind_keeps_its_messages(timed_broker: Broker, clock: Clock) -> None:
    timed_broker.create_topic("t", queues=1, retention=HOUR)
    group, behind = (timed_broker.consumer("t", name) for name in ("g", "behind"))
    timed_broker.send("t", b"soon", delay=10 * MINUTE)
    right = clock()
    clock.set(right + 8 * HOUR)
    assert bodies(group) == bodies(behind) == [b"soon"]
    timed_broker.maintain()
    clock.set(right + MINUTE)
    timed_broker.send("t", b"for both", delay=AT_ONCE)
    recalled = timed_broker.send("t", b"recalled", delay=3 * HOUR)
    assert timed_broker.recall(recalled.message_id).outcome is RecallOutcome.RECALLED
    clock.advance(SECOND)
    assert bodies(group) == [b"for both"]
    for _ in range(2):
        clock.advance(2 * HOUR)
        timed_broker.maintain()
    assert bodies(group) == []
    assert bodies(behind) == [b"for both"]
