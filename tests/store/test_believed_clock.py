"""What upkeep forgets while the clock of the server is ahead, and is put right later."""

from __future__ import annotations

import pytest
from tests.acting import AT_ONCE, DAY, HOUR, MINUTE, SECOND, taken
from tests.clock import Clock

from duewheel.store import RecallOutcome, WaitOutcome
from duewheel.store.broker import Broker
from duewheel.store.consuming.consumer import Consumer

pytestmark = pytest.mark.owner


def bodies(consumer: Consumer) -> list[bytes]:
    return [message.body for message in taken(consumer)]


@pytest.mark.parametrize("ahead_minutes", [0, 30])
def test_x27_a_clock_that_was_ahead_loses_no_later_message(
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


def test_x27_a_recall_holds_and_a_late_group_keeps_its_messages(timed_broker: Broker, clock: Clock) -> None:
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


def test_x27_waiting_messages_are_shown_after_a_clock_correction(timed_broker: Broker, clock: Clock) -> None:
    """It is due before the instant from which the topic's logs were kept while the clock was ahead."""
    timed_broker.create_topic("t", queues=1, retention=HOUR)
    group = timed_broker.consumer("t", "g")
    right = clock()
    clock.set(right + 8 * HOUR)
    timed_broker.send("t", b"ahead", delay=AT_ONCE, key="ahead")
    assert bodies(group) == [b"ahead"]
    clock.advance(2 * HOUR)
    timed_broker.maintain()
    clock.set(right + MINUTE)
    waits, answered, recalled = (
        timed_broker.send("t", b"", delay=HOUR, key=key) for key in ("waits", "answered", "recalled")
    )
    assert timed_broker.find_wait(waits.message_id).outcome is WaitOutcome.WAITING
    timed_broker.answer_key("t", "answered", 1)
    assert timed_broker.find_wait(answered.message_id).outcome is WaitOutcome.ANSWERED
    timed_broker.recall(recalled.message_id)
    for prefix in (None, "w"):
        page = timed_broker.list_messages("t", key_prefix=prefix)
        assert [message.key for message in page.messages] == ["waits"]
    # Until upkeep comes again, other states show the time that is kept by the clock that was ahead.
    timed_broker.maintain()
    for state, keys in {
        "all": {"waits", "answered", "recalled"},
        "recalled": {"answered", "recalled"},
    }.items():
        assert {message.key for message in timed_broker.list_messages("t", state=state).messages} == keys
    clock.advance(HOUR)
    assert len(bodies(group)) == 1
    assert timed_broker.find_wait(waits.message_id).outcome is WaitOutcome.TIMED_OUT
    (released,) = timed_broker.list_messages("t", state="released").messages
    assert released.key == "waits"
