"""Schedules through the public API, on an injected clock; when they occur is the business of test_cron."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from tests.acting import DAY, HOUR, MINUTE, SECOND, taken
from tests.waiting import ask, beside, connected

from duewheel.store.broker import Broker
from duewheel.store.operations.occurrences import HORIZON, OCCURRENCES_AT_ONCE
from duewheel.store.values.errors import (
    InvalidArgument,
    InvalidKey,
    InvalidSchedule,
    PropertiesTooLarge,
    ScheduleExists,
    UnknownSchedule,
    UnknownTopic,
    WrongMessageType,
)
from duewheel.store.values.schedules import Misfire

if TYPE_CHECKING:
    from tests.clock import Clock

    from duewheel.store.values.messages import Message

TOPIC = "files"


@pytest.fixture
def timed(timed_broker: Broker) -> Broker:
    """A broker on the injected clock, which stands at 9:30 on a Monday, with a topic."""
    timed_broker.create_topic(TOPIC)
    return timed_broker


def read(broker: Broker) -> list[Message]:
    """All that is ready, acked."""
    return taken(broker.consumer(TOPIC, "g"))


def occurrences(messages: list[Message]) -> list[datetime]:
    """What the messages say they stand for."""
    return [datetime.fromisoformat(message.properties["occurrence"]) for message in messages]


def turn(broker: Broker, clock: Clock, until: datetime, step: timedelta = 20 * SECOND) -> None:
    """What a wheel does about schedules until an instant."""
    while clock() < until:
        broker.advance_schedules()
        clock.set(min(until, clock() + step))
    broker.advance_schedules()


def test_d18_start_at_is_the_first_occurrence_and_the_anchor(timed: Broker, clock: Clock) -> None:
    start = clock() + timedelta(minutes=7, microseconds=250)
    timed.create_schedule("push", TOPIC, b"", every=3 * MINUTE, start_at=start)
    timed.create_schedule("cron", TOPIC, b"", cron="* * * * *", start_at=start)
    turn(timed, clock, start + 4 * MINUTE)
    # One in the past is an anchor, and no misfire.
    timed.create_schedule("past", TOPIC, b"", every=MINUTE, start_at=start - DAY - 30 * SECOND, misfire="all")
    clock.advance(MINUTE)
    timed.advance_schedules()
    found = [(m.properties["schedule"], m.properties["occurrence"]) for m in read(timed)]
    assert [at for name, at in found if name == "push"] == [
        "2026-01-05T09:37:00.000250+00:00",
        "2026-01-05T09:40:00.000250+00:00",
    ]
    assert [at[11:16] for name, at in found if name == "cron"] == [f"09:{n}" for n in range(38, 43)]
    assert [at for name, at in found if name == "past"] == ["2026-01-05T09:41:30.000250+00:00"]


def test_d18_misfire_skip_sends_no_missed_occurrence(
    timed: Broker, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    timed.create_schedule("hourly", TOPIC, b"", cron="0 * * * *", misfire="skip")
    clock.set(datetime(2026, 2, 4, 9, 1, 1, tzinfo=UTC))
    assert timed.advance_schedules() == 0
    assert "hourly" in caplog.text
    assert "are skipped" in caplog.text
    clock.set(datetime(2026, 2, 4, 13, 1, tzinfo=UTC))
    timed.advance_schedules()
    assert occurrences(read(timed)) == [datetime(2026, 2, 4, 13, tzinfo=UTC)]


def test_d18_misfire_once_sends_the_last_that_was_missed(timed: Broker, clock: Clock) -> None:
    start = clock()
    timed.create_schedule("hourly", TOPIC, b"", cron="0 * * * *")
    timed.create_schedule("often", TOPIC, b"", every=7 * SECOND, misfire=Misfire.ONCE)
    sent_ahead = int(HORIZON / (7 * SECOND))
    clock.advance(timedelta(days=30))
    timed.advance_schedules()
    messages = read(timed)
    hourly = [m for m in messages if m.properties["schedule"] == "hourly"]
    often = [m for m in messages if m.properties["schedule"] == "often"]
    assert occurrences(hourly) == [datetime(2026, 2, 4, 9, tzinfo=UTC)]
    # What waited when the wheel stopped is not missed.
    assert occurrences(often)[:-1] == [start + n * 7 * SECOND for n in range(1, sent_ahead + 1)]
    assert clock() - 7 * SECOND < occurrences(often)[-1] <= clock()
    assert timed.advance_schedules() == 0


@pytest.mark.parametrize("misfire", Misfire)
@pytest.mark.parametrize("hours_ahead", [3, 24 * 30])
def test_d18_a_clock_that_was_ahead_stops_no_schedule(
    timed: Broker, clock: Clock, misfire: Misfire, hours_ahead: int
) -> None:
    start = clock()
    timed.create_schedule("hourly", TOPIC, b"", cron="0 * * * *", misfire=misfire)
    begins = start + 2 * HOUR
    timed.create_schedule("begins", TOPIC, b"", every=HOUR, start_at=begins, misfire=misfire)
    clock.set(start + hours_ahead * HOUR)
    timed.advance_schedules()
    messages = read(timed)
    # The clock is put right.
    clock.set(start)
    turn(timed, clock, start + 6 * HOUR, step=MINUTE / 2)
    messages += read(timed)
    names = [message.properties["schedule"] for message in messages]
    found = list(zip(names, occurrences(messages), strict=True))
    assert len(found) == len(set(found))
    whole = start.replace(minute=0)
    assert {("hourly", whole + n * HOUR) for n in range(1, 7)} <= set(found)
    assert {("begins", begins + n * HOUR) for n in range(5)} <= set(found)
    assert min(at for name, at in found if name == "begins") == begins


@pytest.mark.parametrize("resumes_ahead", [True, False])
@pytest.mark.parametrize("advances_ahead", [True, False])
def test_d18_a_pause_under_a_clock_ahead_stops_no_schedule(
    timed: Broker, clock: Clock, advances_ahead: bool, resumes_ahead: bool
) -> None:
    start = clock()
    timed.create_schedule("push", TOPIC, b"", every=10 * SECOND)
    turn(timed, clock, start + 15 * SECOND)
    clock.set(start + 8 * HOUR)
    if advances_ahead:
        timed.advance_schedules()
    timed.pause_schedule("push")
    clock.set(start + 8 * HOUR if resumes_ahead else start + 16 * SECOND)
    timed.resume_schedule("push")
    # What was due while the clock was ahead has been delivered.
    ahead = occurrences(read(timed))
    clock.set(start + 17 * SECOND)
    turn(timed, clock, start + 5 * MINUTE, step=5 * SECOND)
    found = ahead + occurrences(read(timed))
    assert len(found) == len(set(found))
    assert {start + 10 * n * SECOND for n in range(1, 31)} <= set(found)


def test_d18_a_long_gap_is_sent_in_transactions_of_bounded_size(timed: Broker, clock: Clock) -> None:
    timed.create_schedule("push", TOPIC, b"", every=SECOND, misfire="all")
    clock.advance(timedelta(minutes=20))
    timed.advance_schedules()
    assert len(read(timed)) == 20 * 60
    with connected(timed.dsn) as connection:
        sizes = ask(connection, "select count(*) from duewheel.any_message group by xid")
    assert max(size for (size,) in sizes) <= OCCURRENCES_AT_ONCE


def test_d18_schedules_missed_for_long_do_not_hold_up_others(timed: Broker, clock: Clock) -> None:
    from duewheel.store.operations import occurrences

    for n in range(3):
        timed.create_schedule(f"behind-{n}", TOPIC, b"", every=SECOND, misfire="all")
    clock.advance(DAY)
    timed.create_schedule("punctual", TOPIC, b"", every=90 * SECOND)
    clock.advance(MINUTE)
    with timed.connection() as connection:
        one_round = occurrences.send_occurrences(connection, now=clock())
    assert one_round.more
    assert one_round.sent == 3 * OCCURRENCES_AT_ONCE + 1


def test_d18_pause_recalls_and_resume_continues_from_now(timed: Broker, clock: Clock) -> None:
    start = clock()
    timed.create_schedule("push", TOPIC, b"", every=10 * SECOND, misfire="all")
    clock.set(start + 25 * SECOND)
    timed.pause_schedule("push")
    timed.pause_schedule("push")
    (paused,) = timed.schedules()
    assert paused.paused
    assert paused.paused_at == clock()
    assert paused.next_at is None
    assert paused.last_at == start + 20 * SECOND
    turn(timed, clock, start + 95 * SECOND)
    assert occurrences(read(timed)) == [start + 10 * SECOND, start + 20 * SECOND]
    timed.resume_schedule("push")
    timed.resume_schedule("push")
    (resumed,) = timed.schedules()
    assert not resumed.paused
    assert resumed.next_at == start + 100 * SECOND
    turn(timed, clock, start + 120 * SECOND)
    assert occurrences(read(timed)) == [start + n * SECOND for n in (100, 110, 120)]


def test_d18_occurrences_recalled_by_a_short_pause_are_sent(timed: Broker, clock: Clock) -> None:
    start = clock()
    timed.create_schedule("push", TOPIC, b"", every=10 * SECOND)
    timed.create_schedule("later", TOPIC, b"", every=MINUTE, start_at=start + DAY)
    clock.set(start + 12 * SECOND)
    for _ in range(3):
        for name in ("push", "later"):
            timed.pause_schedule(name)
            timed.resume_schedule(name)
    assert timed.schedules()[0].next_at == start + DAY
    turn(timed, clock, start + 40 * SECOND)
    assert occurrences(read(timed)) == [start + n * SECOND for n in (10, 20, 30, 40)]
    # A deleted topic takes its schedules along.
    timed.delete_topic(TOPIC)
    assert timed.schedules() == []
    timed.create_topic(TOPIC)
    timed.create_schedule("push", TOPIC, b"", every=2 * MINUTE)
    for act in (timed.delete_schedule, timed.pause_schedule, timed.resume_schedule):
        with pytest.raises(UnknownSchedule, match="nothing"):
            act("nothing")


def test_d18_delete_recalls_waiting_and_delivers_due_occurrences(timed: Broker, clock: Clock) -> None:
    start = clock()
    timed.create_schedule("push", TOPIC, b"", every=10 * SECOND)
    clock.advance(10 * SECOND)
    timed.delete_schedule("push")
    assert timed.schedules() == []
    clock.advance(MINUTE)
    timed.advance_schedules()
    assert occurrences(read(timed)) == [start + 10 * SECOND]
    timed.create_schedule("push", TOPIC, b"", every=10 * SECOND)
    turn(timed, clock, clock() + 20 * SECOND)
    assert len(read(timed)) == 2


def test_d18_the_same_schedule_may_be_added_again(timed: Broker, clock: Clock) -> None:
    settings: dict[str, Any] = {"cron": "0 5  * * *", "tag": "t", "properties": {"a": 1}, "start_at": clock()}
    timed.create_schedule("clean-up", TOPIC, b"x", **settings)
    clock.advance(DAY)
    timed.create_schedule("clean-up", TOPIC, b"x", **settings)
    timed.create_schedule("push", TOPIC, b"", every=DAY)
    clock.advance(DAY / 2)
    timed.create_schedule("push", TOPIC, b"", every=timedelta(hours=24))
    assert [schedule.name for schedule in timed.schedules()] == ["clean-up", "push"]


OTHERS: list[tuple[dict[str, Any], str]] = [
    ({"cron": "0 6 * * *"}, "cron 0 5 * * *"),
    ({"cron": None, "every": DAY}, "cron 0 5 * * *, every not given"),
    ({"timezone": "Europe/Berlin"}, "timezone UTC"),
    ({"misfire": "all"}, "misfire once"),
    ({"start_at": datetime(2026, 1, 6, tzinfo=UTC)}, "start_at not given"),
    ({"body": b"y"}, "another body"),
    ({"key": "k"}, "key not given"),
    ({"tag": "t"}, "tag not given"),
    ({"properties": {}}, "properties not given"),
    ({"topic": "other"}, "topic files"),
]


def test_a_schedule_with_other_settings_is_refused_naming_them(timed: Broker) -> None:
    timed.create_topic("other")
    given: dict[str, Any] = {"topic": TOPIC, "body": b"x", "cron": "0 5 * * *"}
    timed.create_schedule("clean-up", **given)
    for change, said in OTHERS:
        with pytest.raises(ScheduleExists) as caught:
            timed.create_schedule("clean-up", **{**given, **change})
        assert f"settings: {said}. " in str(caught.value)


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"name": "a b"}, InvalidArgument, "name of a schedule"),
    ({"name": "x" * 128}, InvalidArgument, "1 to 127"),
    ({"topic": "none"}, UnknownTopic, "none"),
    ({"topic": "normal"}, WrongMessageType, "DELAY"),
    ({"cron": "99 * * * *"}, InvalidSchedule, "five|minute, hour"),
    ({"cron": None}, InvalidSchedule, "neither is given"),
    ({"every": DAY}, InvalidSchedule, "both are given"),
    ({"cron": None, "every": timedelta(milliseconds=10)}, InvalidSchedule, "1 second"),
    ({"cron": None, "every": 60}, InvalidArgument, "timedelta"),
    ({"timezone": "Berlin"}, InvalidSchedule, "Europe/Berlin"),
    ({"timezone": None}, InvalidSchedule, "IANA"),
    ({"start_at": datetime(2099, 1, 1, tzinfo=UTC)}, InvalidSchedule, "3660 days"),
    ({"misfire": "never"}, InvalidArgument, "skip"),
    ({"properties": {"schedule": 1}}, InvalidArgument, "occurrence"),
    ({"properties": {"x": "y" * 16_380}}, PropertiesTooLarge, "16 KiB"),
    ({"key": ""}, InvalidKey, "1 to 255"),
]


def test_what_cannot_be_is_refused(timed: Broker) -> None:
    timed.create_topic("normal", message_type="NORMAL")
    given: dict[str, Any] = {"name": "clean-up", "topic": TOPIC, "body": b"x", "cron": "0 5 * * *"}
    for change, error, said in BAD:
        with pytest.raises(error, match=said):
            timed.create_schedule(**{**given, **change})
    assert timed.schedules() == []


def test_the_list_has_settings_and_progress(timed: Broker, clock: Clock) -> None:
    start = clock()
    timed.create_schedule(
        "push", TOPIC, "body", every=40 * SECOND, misfire="skip", key="k", tag="t", properties={"a": [1]}
    )
    (schedule,) = timed.schedules()
    assert (schedule.next_at, schedule.last_at, schedule.last_message_id) == (start + 40 * SECOND, None, None)
    clock.advance(41 * SECOND)
    timed.advance_schedules()
    (message,) = read(timed)
    (schedule,) = timed.schedules()
    assert schedule.next_at == start + 80 * SECOND
    assert schedule.last_at == start + 40 * SECOND
    assert schedule.last_message_id == message.message_id
    assert (schedule.name, schedule.topic, schedule.cron, schedule.every) == (
        "push",
        TOPIC,
        None,
        40 * SECOND,
    )
    assert (schedule.timezone, schedule.misfire, schedule.start_at) == ("UTC", Misfire.SKIP, None)
    assert (schedule.body, schedule.key, schedule.tag) == (b"body", "k", "t")
    assert schedule.properties == {"a": [1], "content-type": "text/plain; charset=utf-8"}
    assert (schedule.created_at, schedule.paused) == (start, False)


def test_d18_an_occurrence_past_max_delay_is_sent_within_reach(timed: Broker, clock: Clock) -> None:
    start = clock()
    timed.create_topic("short", max_delay=5 * SECOND, out_of_range="deliver")
    timed.create_schedule("push", "short", b"", every=20 * SECOND)
    consumer = timed.consumer("short", "g")
    for second in range(1, 41):
        clock.set(start + second * SECOND)
        timed.advance_schedules()
        batch = consumer.receive(10)
        assert occurrences(list(batch)) == ([clock()] if second % 20 == 0 else [])


@pytest.mark.owner
def test_x15_a_schedule_that_cannot_be_sent_stops_no_others(
    timed: Broker, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    timed.create_schedule("broken", TOPIC, b"", cron="* * * * *")
    timed.create_schedule("sound", TOPIC, b"", cron="* * * * *")
    with connected(timed.dsn) as connection:
        ask(connection, "update duewheel.schedule set timezone = 'Mars/Olympus' where name = 'broken'")
    clock.advance(MINUTE + 30 * SECOND)
    with caplog.at_level(logging.WARNING):
        timed.advance_schedules()
    assert "broken" in caplog.text
    clock.advance(MINUTE)
    assert [m.properties["schedule"] for m in read(timed)].count("sound") == 2


def test_x18_schedules_held_by_others_stop_no_later_ones(
    timed: Broker, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many: here a round asks for two."""
    monkeypatch.setattr("duewheel.store.operations.occurrences.SCHEDULES_AT_ONCE", 2)
    for name in "abcde":
        timed.create_schedule(name, TOPIC, b"", cron="* * * * *")
    # The first was sent when they were added.
    clock.advance(MINUTE + 40 * SECOND)
    assert len(read(timed)) == 5
    with connected(timed.dsn, autocommit=False) as connection:
        for name in "ab":
            ask(connection, "select duewheel.pause_schedule(%s, %s)", name, clock())
        timed.advance_schedules()
        connection.rollback()
    clock.advance(MINUTE)
    assert sorted(m.properties["schedule"] for m in read(timed)) == ["c", "d", "e"]


@pytest.mark.slow
def test_d18_many_at_once_send_each_occurrence_once(timed: Broker, clock: Clock) -> None:
    start = clock()
    for n in range(4):
        timed.create_schedule(f"push-{n}", TOPIC, b"", every=SECOND, misfire="all")
    clock.advance(timedelta(minutes=15))
    with beside() as begin:
        rounds = [begin(timed.advance_schedules) for _ in range(6)]
    sent = sum(a_round.result() for a_round in rounds)
    messages = read(timed)
    assert sent + 4 * 60 >= len(messages)
    for n in range(4):
        own = [m for m in messages if m.properties["schedule"] == f"push-{n}"]
        assert occurrences(own) == [start + second * SECOND for second in range(1, 15 * 60 + 1)]
