"""The sweep looks through slots that are over, and seals them."""

from __future__ import annotations

import json

import pytest
from tests.acting import AT_ONCE, DAY, HOUR, MINUTE, SECOND, taken
from tests.clock import Clock
from tests.waiting import ask, connected

from duewheel.store.broker import Broker
from duewheel.store.database.connections import DriverConnection
from duewheel.store.wheel import upkeep
from duewheel.store.wheel.upkeep import STEP, State

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
def test_x23_later_transactions_do_not_delay_a_past_slot(timed_broker: Broker, clock: Clock) -> None:
    """On a busy server there is always some transaction open, and rarely the same one."""
    with connected(timed_broker.dsn) as upkeeping, connected(timed_broker.dsn) as busy:
        open_transaction_beside_a_slot_that_is_over(timed_broker, clock, upkeeping, busy)
        sweeps = 0

        def call(before: str | None, rows: int) -> State:
            nonlocal sweeps
            ((state,),) = ask(upkeeping, STEP, before, rows, clock())
            if before and json.loads(before)["todo"][0]["step"] in ("note_over", "sweep"):
                sweeps += 1
                # The next transaction is open before this one ends.
                ask(busy, "commit and chain")
                ask(busy, "select pg_current_xact_id()")
            return state

        upkeep.in_rounds(call)
        unsealed = "select count(*) from duewheel.slot where sealed_at is null and ends_at < %s"
        assert ask(upkeeping, unsealed, clock()) == [(0,)]


@pytest.mark.owner
@pytest.mark.parametrize("kept_days", [1, 30])
def test_x23_an_empty_slot_waits_for_its_open_sender(
    timed_broker: Broker, clock: Clock, kept_days: int
) -> None:
    """Open for longer than the retention, and committed just before upkeep comes."""
    timed_broker.create_topic("t", queues=1, max_delay=3 * DAY, retention=kept_days * DAY)
    consumer = timed_broker.consumer("t", "g")
    timed_broker.maintain()
    with connected(timed_broker.dsn, autocommit=False) as sending:
        timed_broker.send("t", b"late", delay=DAY, connection=sending)
        timed_broker.send("t", b"", delay=2 * DAY)
        clock.advance(3 * DAY)
        timed_broker.tick("t")
        timed_broker.maintain()
        clock.advance(2 * DAY)
        timed_broker.maintain()
        sending.commit()
    timed_broker.maintain()
    assert sorted(message.body for message in consumer.receive(max_messages=10)) == [b"", b"late"]


@pytest.mark.owner
def test_x25_one_transactions_messages_are_swept_in_portions(timed_broker: Broker, clock: Clock) -> None:
    """A planted fault: the broker has lost its word that they were released late."""
    timed_broker.create_topic("t", queues=2)
    timed_broker.maintain()
    with connected(timed_broker.dsn, autocommit=False) as sending, connected(timed_broker.dsn) as upkeeping:
        timed_broker.send_many(
            "t", [{"body": b"", "deliver_at": clock() + HOUR}] * 25_000, connection=sending
        )
        timed_broker.send("t", b"", delay=HOUR)
        clock.advance(2 * HOUR)
        timed_broker.tick("t")
        sending.commit()
        timed_broker.tick("t")
        ask(upkeeping, "with lost as (delete from duewheel.straggler returning 1) select count(*) from lost")
        clock.advance(DAY)
        portions = []

        def call(before: str | None, rows: int) -> State:
            ((state,),) = ask(upkeeping, STEP, before, rows, clock())
            portions.append(state["report"].get("swept", 0))
            return state

        assert upkeep.in_rounds(call)["swept"] == 25_000
        assert max(portions) <= 10_000
        assert ask(upkeeping, "select count(*) from duewheel.straggler") == [(25_000,)]


@pytest.mark.owner
def test_x18_a_slot_waiting_for_a_transaction_is_left_for_later(timed_broker: Broker, clock: Clock) -> None:
    with connected(timed_broker.dsn) as upkeeping, connected(timed_broker.dsn) as other:
        open_transaction_beside_a_slot_that_is_over(timed_broker, clock, upkeeping, other)
        timed_broker.maintain()
        unsealed = "select count(*) > 0 from duewheel.slot where sealed_at is null and ends_at < %s"
        assert ask(upkeeping, unsealed, clock()) == [(True,)]
        # It takes no more than the end of what was open.
        ask(other, "rollback")
        timed_broker.maintain()
        assert ask(upkeeping, unsealed, clock()) == [(False,)]


def test_x13_a_message_behind_a_wrong_clock_is_released_once(timed_broker: Broker, clock: Clock) -> None:
    """Two ticks end at the same instant, and the second one alone released it."""
    timed_broker.create_topic("t", queues=1, retention=HOUR)
    consumer = timed_broker.consumer("t", "g")
    start = clock()
    with connected(timed_broker.dsn, autocommit=False) as late:
        timed_broker.send("t", b"late", delay=AT_ONCE, connection=late)
        clock.advance(5 * MINUTE)
        timed_broker.send("t", b"ahead", delay=AT_ONCE)
        timed_broker.tick("t")
        clock.set(start + SECOND)
        late.commit()
    assert sorted(message.body for message in taken(consumer)) == [b"ahead", b"late"]
    for after in (3 * HOUR, 2 * DAY):
        clock.advance(after)
        timed_broker.send("t", b"later", delay=AT_ONCE)
        assert [message.body for message in taken(consumer)] == [b"later"]
        timed_broker.maintain()
    assert taken(consumer) == []
