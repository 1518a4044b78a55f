"""What upkeep has left to do, as the numbers of the broker say it."""

from __future__ import annotations

from datetime import timedelta

from tests.acting import AT_ONCE, DAY
from tests.clock import Clock

from duewheel.store.broker import Broker


def test_x08_the_backlog_of_upkeep_is_counted(timed_broker: Broker, clock: Clock) -> None:
    timed_broker.create_topic("t", retention=2 * DAY, max_delay=30 * DAY)
    timed_broker.send("t", b"", delay=AT_ONCE)
    timed_broker.maintain()
    upkeep = timed_broker.stats().upkeep
    assert (upkeep.slots_to_seal, upkeep.slots_past_retention, upkeep.messages_to_settle) == (0, 0, 0)
    clock.advance(timedelta(days=1.5))
    timed_broker.send_many("t", [{"body": b"", "delay": 20 * DAY}] * 3)
    assert timed_broker.stats().upkeep.slots_to_seal == 1
    clock.advance(3 * DAY)
    upkeep = timed_broker.stats().upkeep
    assert (upkeep.slots_to_seal, upkeep.slots_past_retention) == (4, 2)
    clock.advance(11 * DAY)
    # The slots of the next days are made, and the messages can go there.
    timed_broker.maintain()
    clock.advance(3 * DAY)
    timed_broker.maintain()
    upkeep = timed_broker.stats().upkeep
    assert (upkeep.slots_to_seal, upkeep.slots_past_retention, upkeep.messages_to_settle) == (0, 0, 0)
