"""What a program that watches groups asks: within a limit, and of as many groups as there is time for."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.acting import MINUTE
from tests.clock import Clock
from tests.waiting import ask, connected

from duewheel.store import Broker, GroupBusy
from duewheel.store.consuming.doorbells import Asked
from duewheel.store.consuming.watching import poll, subscribe


def test_groups_without_time_in_a_poll_are_left_for_the_next(broker: Broker) -> None:
    broker.create_topic("t")
    broker.consumer("t", "b")
    asked = [Asked("t", group) for group in "abc"]
    assert poll(broker, asked, release=False, limit_seconds=60, turn_seconds=60)[1] == 3
    broker.consumer("t", "a")
    broker.consumer("t", "c")
    bells, looked_at = poll(broker, asked, release=False, limit_seconds=60, turn_seconds=0)
    assert ([bell.group for bell in bells], looked_at) == (["a"], 1)


@pytest.mark.owner
@pytest.mark.slow
def test_x18_a_release_that_waits_for_a_lock_is_cancelled(timed_broker: Broker, clock: Clock) -> None:
    timed_broker.create_topic("t")
    topic_id = timed_broker.consumer("t", "g").topic_id
    timed_broker.send("t", b"x", delay=MINUTE)
    clock.advance(2 * MINUTE)
    with connected(timed_broker.dsn, autocommit=False) as open_:
        ask(open_, "select pg_advisory_xact_lock(duewheel.tick_lock_class(), %s)", topic_id)
        with pytest.raises(GroupBusy, match=r"took longer than 0.5 s and was cancelled"):
            poll(timed_broker, [Asked("t", "g")], release=True, limit_seconds=0.5, turn_seconds=60)
        assert ask(open_, "select from pg_stat_activity where wait_event_type = 'Lock'") == []
    ((bell,), _) = poll(timed_broker, [Asked("t", "g")], release=True, limit_seconds=60, turn_seconds=60)
    assert bell.ready == 1


def test_a_group_is_made_once_and_begins_where_it_is_told_to(timed_broker: Broker, clock: Clock) -> None:
    timed_broker.create_topic("t", message_type="NORMAL")
    for wait in (timedelta(0), MINUTE):
        clock.advance(wait)
        timed_broker.send("t", b"x")
        clock.advance(MINUTE)
        timed_broker.tick("t")
        subscribe(timed_broker, "t", "g", clock() - MINUTE / 2, tags=None, filter=None, limit_seconds=60)
    (bell,) = timed_broker.doorbells(["t"], ["g"])
    assert bell.ready == 1
