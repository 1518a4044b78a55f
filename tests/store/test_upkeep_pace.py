"""A wheel's upkeep pauses between its steps, and comes again soon where a round has left something."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import psycopg2
import pytest
from tests.acting import AT_ONCE, DAY, HOUR, MINUTE
from tests.clock import Clock, believe
from tests.waiting import PATIENCE_SECONDS, ask, connected

from duewheel.store.broker import Broker
from duewheel.store.values.errors import InvalidArgument
from duewheel.store.wheel import upkeep

HOUR_SECONDS = 3_600.0

Call = Callable[[str | None, int], upkeep.State]


def calling(broker: Broker) -> Call:
    return lambda state, rows: broker._database.rows(upkeep.STEP, (state, rows, broker._database.now()))[0][0]


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

    def slowly(state: str | None, rows: int) -> upkeep.State:
        told.advance(timedelta(milliseconds=100))
        return call(state, rows)

    done, seconds = upkeep.Pace(HOUR_SECONDS).step(slowly)
    assert done is None
    assert seconds == pytest.approx(0.4)


def test_x18_a_round_of_hours_does_not_look_overdue(timed_broker: Broker, clock: Clock) -> None:
    """It drops what it may meanwhile, and says so at its end; the round has further steps."""
    timed_broker.create_topic("t", retention=DAY)
    timed_broker.send("t", b"", delay=AT_ONCE)
    consumer = timed_broker.consumer("t", "g")
    consumer.ack(consumer.receive())
    timed_broker.maintain()
    pace, call = upkeep.Pace(HOUR_SECONDS), calling(timed_broker)
    todo: list[str] = []

    def for_nine_minutes(state: str | None, rows: int) -> upkeep.State:
        clock.advance(9 * MINUTE)
        after = call(state, rows)
        todo.extend(task["step"] for task in after["todo"][:1])
        return after

    clock.advance(4 * DAY)
    ages, done = [], None
    while done is None:
        done, _ = pace.step(for_nine_minutes)
        ages.append(clock() - timed_broker.stats().upkeep.maintained_at)
    assert todo.count("prepare") > 2
    assert max(ages[4:]) < HOUR
    assert sorted(done.dropped) == [f"message_202601{day}00" for day in ("05", "06", "07")]


# A row that no session may delete, as where a constraint of a stranger holds it.
REFUSE = """
create function public.refuse() returns trigger language plpgsql as $$
begin
    raise exception 'a stranger keeps this row' using errcode = %s;
end
$$;
create trigger refuse before delete on duewheel.lease_event for each row when (old.topic_id = 1)
    execute function public.refuse();
"""


@pytest.fixture
def refusing(timed_broker: Broker, clock: Clock, request: pytest.FixtureRequest) -> Broker:
    """Topics whose logs are past retention; what the first one has in a log cannot be deleted."""
    for name in ("first", "second"):
        timed_broker.create_topic(name, queues=1, retention=DAY)
    timed_broker.maintain()
    for _ in range(2):
        for name in ("first", "second"):
            timed_broker.send(name, b"", delay=AT_ONCE)
            clock.advance(timedelta(seconds=1))
            consumer = timed_broker.consumer(name, "g")
            consumer.ack(consumer.receive())
        clock.advance(4 * DAY)
    timed_broker.maintain()
    for name in ("first", "second"):
        consumer = timed_broker.consumer(name, "g")
        timed_broker.send(name, b"", delay=AT_ONCE)
        clock.advance(timedelta(seconds=1))
        consumer.ack(consumer.receive())
    clock.advance(4 * DAY)
    with connected(timed_broker.dsn) as owner:
        ask(owner, REFUSE, request.param)
    return timed_broker


@pytest.mark.owner
@pytest.mark.parametrize("refusing", ["P0001", "57014"], ids=["fails", "is canceled"], indirect=True)
def test_x25_a_row_that_cannot_be_deleted_stops_nothing_else(refusing: Broker) -> None:
    """The round names the step and the cause, deals with the rest, and is followed by another one soon."""
    pace = upkeep.Pace(HOUR_SECONDS)
    of_topic = "select count(*) from duewheel.lease where topic_id = %s"
    with connected(refusing.dsn) as owner:
        before = [ask(owner, of_topic, topic_id)[0][0] for topic_id in (1, 2)]
        done, seconds = whole_round(pace, calling(refusing))
        after = [ask(owner, of_topic, topic_id)[0][0] for topic_id in (1, 2)]
    assert done.dropped
    assert left(refusing) == (0, 0)
    assert after[0] == before[0]
    assert after[1] < before[1]
    # Once before slots are dropped, and once after it.
    assert (
        done.warnings == ("the step forget of upkeep failed and was left out: a stranger keeps this row",) * 2
    )
    assert seconds == 10


@pytest.mark.owner
@pytest.mark.parametrize("opened", ["begin", "begin; select pg_current_xact_id()"])
def test_x18_a_transaction_that_may_stay_open_does_no_upkeep(timed_broker: Broker, opened: str) -> None:
    with connected(timed_broker.dsn) as session:
        for statement in opened.split("; "):
            ask(session, statement)
        with pytest.raises(psycopg2.Error, match="outside of a transaction block"):
            ask(session, "select duewheel.upkeep_step()")


@pytest.mark.owner
def test_x25_statements_alone_do_upkeep(timed_broker: Broker, clock: Clock) -> None:
    """As psql, or a job of cron, calls it: without the program."""
    timed_broker.create_topic("t", retention=DAY)
    timed_broker.maintain()
    clock.advance(4 * DAY)
    believe(timed_broker.dsn, clock())
    with connected(timed_broker.dsn) as session:
        state: str | None = None
        finished = False
        while not finished:
            ((state, finished),) = ask(
                session,
                "select s::text, (s ->> 'finished')::boolean from duewheel.upkeep_step(%s, 1000, %s) s",
                state,
                clock(),
            )
        for none in (state, "{}", "[]", "5"):
            with pytest.raises(psycopg2.Error, match="state must be that of an unfinished round") as refused:
                ask(session, "select duewheel.upkeep_step(%s, 1000, %s)", none, clock())
            assert refused.value.pgcode == InvalidArgument.sqlstate
    assert left(timed_broker) == (0, 0)
    assert timed_broker.stats().upkeep.slots_past_retention == 0


@pytest.mark.slow
@pytest.mark.owner
def test_x25_a_round_that_left_work_is_soon_followed_by_another(timed_broker: Broker, clock: Clock) -> None:
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
