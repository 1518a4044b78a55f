"""A wheel's upkeep pauses between its steps, and comes again soon where a round has left something."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg2
import pytest
from tests.acting import AT_ONCE, DAY, HOUR
from tests.clock import Clock
from tests.waiting import PATIENCE_SECONDS, ask, connected

from duewheel.store.broker import Broker
from duewheel.store.wheel import upkeep

HOUR_SECONDS = 3_600.0

Call = Callable[[str], tuple[Any, ...]]


def calling(broker: Broker) -> Call:
    return lambda statement: broker._database.rows(statement, (broker._database.now(),))[0]


def whole_round(pace: upkeep.Pace, call: Call) -> tuple[upkeep.Maintenance, float]:
    """What a round has done, and how long to rest after it."""
    done = None
    while done is None:
        done, seconds = pace.step(call)
    return done, seconds


def left(broker: Broker) -> tuple[int, int]:
    state = broker.stats().upkeep
    return state.slots_to_seal, state.messages_to_settle


def test_a_step_is_followed_by_a_pause_four_times_as_long(
    timed_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Clock(datetime(2026, 1, 5, tzinfo=UTC))
    monkeypatch.setattr("time.monotonic", lambda: told().timestamp())
    call = calling(timed_broker)

    def slowly(statement: str) -> tuple[Any, ...]:
        told.advance(timedelta(milliseconds=100))
        return call(statement)

    done, seconds = upkeep.Pace(HOUR_SECONDS).step(slowly)
    assert done is None
    assert seconds == pytest.approx(0.4)


def test_x18_a_round_of_hours_does_not_look_overdue(
    timed_broker: Broker, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It drops what it may meanwhile, and says so at its end; its time begins with its first step."""
    timed_broker.create_topic("t", retention=DAY)
    timed_broker.send("t", b"", delay=AT_ONCE)
    consumer = timed_broker.consumer("t", "g")
    consumer.ack(consumer.receive())
    timed_broker.maintain()
    monkeypatch.setattr("time.monotonic", lambda: clock().timestamp())
    pace, call = upkeep.Pace(HOUR_SECONDS), calling(timed_broker)
    statements: list[str] = []

    def for_a_quarter_of_an_hour(statement: str) -> tuple[Any, ...]:
        statements.append(statement)
        clock.advance(HOUR / 4)
        return call(statement)

    clock.advance(4 * DAY)
    ages, done = [], None
    while done is None:
        done, _ = pace.step(for_a_quarter_of_an_hour)
        ages.append(clock() - timed_broker.stats().upkeep.maintained_at)
    assert "maintain" not in statements[0]
    assert len(statements) > 8
    assert max(ages[4:]) < HOUR
    assert sorted(done.dropped) == [f"message_202601{day}00" for day in ("05", "06", "07")]


def test_x25_a_step_that_fails_again_and_again_keeps_no_other_work_waiting(
    timed_broker: Broker, clock: Clock
) -> None:
    timed_broker.create_topic("t", retention=DAY)
    timed_broker.maintain()
    clock.advance(4 * DAY)
    pace, call = upkeep.Pace(HOUR_SECONDS), calling(timed_broker)

    def failing_to_forget(statement: str) -> tuple[Any, ...]:
        if "forget(" in statement:
            raise psycopg2.OperationalError(statement)
        return call(statement)

    failures, done = 0, None
    while done is None:
        try:
            done, seconds = pace.step(failing_to_forget)
        except psycopg2.OperationalError:
            failures += 1
    # Once before slots are dropped, and once after it.
    assert failures == 2
    assert sorted(done.dropped) == [f"message_202601{day}00" for day in ("05", "06", "07")]
    assert left(timed_broker) == (0, 0)
    # What failed is tried again soon.
    assert seconds == 10


def test_x25_maintain_by_hand_does_the_rest_of_a_round_before_it_fails(
    timed_broker: Broker, clock: Clock
) -> None:
    timed_broker.create_topic("t", retention=DAY)
    timed_broker.maintain()
    clock.advance(4 * DAY)
    call = calling(timed_broker)

    def failing_to_settle(statement: str) -> tuple[Any, ...]:
        if "settle_far(" in statement:
            raise psycopg2.OperationalError("settle_far failed")
        return call(statement)

    with pytest.raises(psycopg2.OperationalError, match="settle_far failed"):
        upkeep.in_rounds(failing_to_settle)
    assert timed_broker.stats().upkeep.slots_past_retention == 0


@pytest.mark.slow
@pytest.mark.owner
def test_x25_a_round_that_left_something_is_followed_by_one_before_the_hour(
    timed_broker: Broker, clock: Clock
) -> None:
    """Messages of weeks without upkeep have no slots, and new ones open when open transactions have ended."""
    timed_broker.create_topic("t", retention=2 * DAY, max_delay=30 * DAY)
    timed_broker.maintain()
    timed_broker.send_many("t", [{"body": b"", "delay": day * DAY} for day in range(1, 25)])
    clock.advance(30 * DAY)
    consumer = timed_broker.consumer("t", "g")
    consumer.ack(consumer.receive(max_messages=100))
    pace, call = upkeep.Pace(HOUR_SECONDS), calling(timed_broker)
    with connected(timed_broker.dsn) as session:
        ask(session, "begin")
        ask(session, "select count(*) from duewheel.message")
        rests = []
        for _ in range(11):
            _, seconds = whole_round(pace, call)
            rests.append(seconds)
            assert min(left(timed_broker)) > 0
    assert rests == [10, 20, 40, 80, 160, 320, 640, 1_280, 2_560, HOUR_SECONDS, HOUR_SECONDS]
    dropped: list[str] = []
    rests.clear()
    while HOUR_SECONDS not in rests:
        done, seconds = whole_round(pace, call)
        dropped.extend(done.dropped)
        rests.append(seconds)
    # As soon as less is left, the next round is not far.
    assert set(rests[:-1]) <= {10}
    assert left(timed_broker) == (0, 0)
    assert len(dropped) > 16
    assert timed_broker.stats().upkeep.slots_past_retention == 0
    # The next one that leaves something begins with a short rest again.
    with connected(timed_broker.dsn) as session:
        ask(session, "select pg_advisory_lock(duewheel.tick_lock_class(), -2)")
        done, seconds = whole_round(pace, call)
    assert (done.dropped, seconds) == ((), 10)


@pytest.mark.owner
def test_a_wheel_that_is_stopped_in_a_pause_of_upkeep_ends(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The pause after the first step would last for days."""
    monkeypatch.setattr(upkeep, "_PAUSE_FOR_STEP", 1e9)
    stepped = threading.Event()
    step = upkeep.Pace.step

    def noted(pace: upkeep.Pace, call: Call) -> tuple[upkeep.Maintenance | None, float]:
        try:
            return step(pace, call)
        finally:
            stepped.set()

    monkeypatch.setattr(upkeep.Pace, "step", noted)
    stop = threading.Event()
    wheel = threading.Thread(target=broker.wheel().run, args=[stop])
    wheel.start()
    assert stepped.wait(PATIENCE_SECONDS)
    stop.set()
    wheel.join(PATIENCE_SECONDS)
    assert not wheel.is_alive()
    assert caplog.messages == []


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
