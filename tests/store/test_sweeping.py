"""The sweep looks through slots that are over, and seals them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from tests.clock import Clock
from tests.waiting import ask, connected

from duewheel.store.broker import Broker
from duewheel.store.database.connections import DriverConnection
from duewheel.store.wheel import upkeep

DAY = timedelta(days=1)
TOPICS = ("a", "b", "c")


def open_transaction_beside_a_slot_that_is_over(
    broker: Broker, clock: Clock, upkeeping: DriverConnection, other: DriverConnection
) -> None:
    """A slot with a message of each topic is over, and a transaction is open that may have sent into it."""
    ask(upkeeping, "select duewheel.make_slot(%s)", clock() + DAY)
    for name in TOPICS:
        broker.create_topic(name, queues=1, max_delay=3 * DAY)
        broker.send(name, b"", delay=DAY)
    clock.advance(3 * DAY)
    ask(other, "begin")
    ask(other, "select pg_current_xact_id()")
    # A snapshot lists transactions up to the latest that has ended.
    ask(upkeeping, "select pg_current_xact_id()")


@pytest.mark.owner
def test_x23_a_topic_that_waits_for_an_open_transaction_keeps_no_other_from_being_swept(
    timed_broker: Broker, clock: Clock
) -> None:
    """On a busy server there is always some transaction open, and rarely the same one."""
    with connected(timed_broker.dsn) as upkeeping, connected(timed_broker.dsn) as busy:
        open_transaction_beside_a_slot_that_is_over(timed_broker, clock, upkeeping, busy)
        sweeps = 0

        def call(statement: str) -> tuple[Any, ...]:
            nonlocal sweeps
            (row,) = ask(upkeeping, statement, clock())
            if "sweep(" in statement:
                sweeps += 1
                if sweeps == 2:
                    # The first topic was ticked, and waits now for the transactions that were open then.
                    ask(busy, "rollback")
            return row

        upkeep.in_rounds(call)
        unsealed = "select count(*) from duewheel.slot where sealed_at is null and ends_at < %s"
        assert ask(upkeeping, unsealed, clock()) == [(0,)]


@pytest.mark.owner
def test_x18_topics_that_wait_for_one_transaction_are_left_to_the_next_upkeep(
    timed_broker: Broker, clock: Clock
) -> None:
    with connected(timed_broker.dsn) as upkeeping, connected(timed_broker.dsn) as other:
        open_transaction_beside_a_slot_that_is_over(timed_broker, clock, upkeeping, other)
        timed_broker.maintain()
        unsealed = "select count(*) > 0 from duewheel.slot where sealed_at is null and ends_at < %s"
        assert ask(upkeeping, unsealed, clock()) == [(True,)]
        # All of them were ticked meanwhile, so it takes no more than the end of what was open.
        ask(other, "rollback")
        timed_broker.maintain()
        assert ask(upkeeping, unsealed, clock()) == [(False,)]
