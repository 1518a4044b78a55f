"""Schedules through the public API, on an injected clock; when they occur is the business of test_cron."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from tests.acting import DAY, HOUR, MILLISECOND, MINUTE, SECOND
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


def read(broker: Broker, group: str = "g") -> list[Message]:
    """All that is ready for a group, acked."""
    consumer = broker.consumer(TOPIC, group)
    found: list[Message] = []
    while batch := consumer.receive(1_000):
        found += batch
        consumer.ack(batch)
    return found


def occurrences(messages: list[Message]) -> list[datetime]:
    """What the messages say they stand for."""
    return [datetime.fromisoformat(message.properties["occurrence"]) for message in messages]


def turn(broker: Broker, clock: Clock, until: datetime, step: timedelta = 20 * SECOND) -> None:
    """What a wheel does about schedules until an instant."""
    while clock() < until:
        broker.advance_schedules()
        clock.set(min(until, clock() + step))
    broker.advance_schedules()


@pytest.mark.slow
def test_d18_every_day_at_five_o_clock(timed: Broker, clock: Clock) -> None:
    timed.add_schedule("clean-up", TOPIC, b"*.tmp", cron="0 5 * * *", timezone="Europe/Berlin")
    turn(timed, clock, clock() + 3 * DAY, step=29 * SECOND)
    messages = read(timed)
    assert occurrences(messages) == [datetime(2026, 1, day, 4, tzinfo=UTC) for day in (6, 7, 8)]
    assert [message.deliver_at for message in messages] == occurrences(messages)
    assert {bytes(message.body) for message in messages} == {b"*.tmp"}


def test_d18_every_two_minutes(timed: Broker, clock: Clock) -> None:
    start = clock()
    timed.add_schedule("push", TOPIC, b"", every=2 * MINUTE)
    turn(timed, clock, start + 20 * MINUTE)
    assert occurrences(read(timed)) == [start + n * 2 * MINUTE for n in range(1, 11)]


def test_d18_an_occurrence_is_never_early_and_comes_at_its_instant(timed: Broker, clock: Clock) -> None:
    start = clock()
    timed.add_schedule("push", TOPIC, b"", every=10 * SECOND)
    clock.set(start + 10 * SECOND - MILLISECOND)
    assert read(timed) == []
    clock.set(start + 10 * SECOND)
    assert occurrences(read(timed)) == [start + 10 * SECOND]


def test_d18_a_message_says_what_it_stands_for_beside_what_was_given(timed: Broker, clock: Clock) -> None:
    timed.add_schedule(
        "push", TOPIC, {"n": 1}, every=MINUTE, key="k", tag="t", properties={"region": "north"}
    )
    clock.advance(MINUTE)
    (message,) = read(timed)
    assert message.properties == {
        "region": "north",
        "content-type": "application/json",
        "schedule": "push",
        "occurrence": "2026-01-05T09:31:00+00:00",
    }
    assert (message.key, message.tag, bytes(message.body)) == ("k", "t", b'{"n":1}')


def test_d18_start_at_is_the_first_occurrence_and_the_anchor(timed: Broker, clock: Clock) -> None:
    start = clock() + timedelta(minutes=7, microseconds=250)
    timed.add_schedule("push", TOPIC, b"", every=3 * MINUTE, start_at=start)
    timed.add_schedule("cron", TOPIC, b"", cron="* * * * *", start_at=start)
    turn(timed, clock, start + 4 * MINUTE)
    found = [(m.properties["schedule"], m.properties["occurrence"]) for m in read(timed)]
    assert [at for name, at in found if name == "push"] == [
        "2026-01-05T09:37:00.000250+00:00",
        "2026-01-05T09:40:00.000250+00:00",
    ]
    assert [at[11:16] for name, at in found if name == "cron"] == ["09:38", "09:39", "09:40", "09:41"]


def test_d18_a_start_in_the_past_is_an_anchor_and_no_misfire(timed: Broker, clock: Clock) -> None:
    start = clock() - timedelta(days=10, seconds=30)
    timed.add_schedule("push", TOPIC, b"", every=MINUTE, start_at=start, misfire="all")
    clock.advance(MINUTE)
    assert occurrences(read(timed)) == [clock() - 30 * SECOND]


def test_d18_misfire_skip_sends_none_of_what_was_missed(
    timed: Broker, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    timed.add_schedule("hourly", TOPIC, b"", cron="0 * * * *", misfire="skip")
    clock.advance(timedelta(days=30))
    with caplog.at_level(logging.WARNING):
        assert timed.advance_schedules() == 0
    assert "hourly" in caplog.text
    assert "passed over" in caplog.text
    turn(timed, clock, clock() + HOUR)
    assert occurrences(read(timed)) == [datetime(2026, 2, 4, 10, tzinfo=UTC)]


def test_d18_misfire_skip_sends_what_is_at_most_a_minute_late(timed: Broker, clock: Clock) -> None:
    timed.add_schedule("hourly", TOPIC, b"", cron="0 * * * *", misfire="skip")
    clock.set(datetime(2026, 1, 5, 13, 1, tzinfo=UTC))
    timed.advance_schedules()
    assert occurrences(read(timed)) == [datetime(2026, 1, 5, 13, tzinfo=UTC)]


def test_d18_misfire_once_sends_the_last_that_was_missed(timed: Broker, clock: Clock) -> None:
    start = clock()
    timed.add_schedule("hourly", TOPIC, b"", cron="0 * * * *")
    timed.add_schedule("often", TOPIC, b"", every=7 * SECOND, misfire=Misfire.ONCE)
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


@pytest.mark.slow
def test_d18_misfire_all_sends_each_in_order_and_at_once(timed: Broker, clock: Clock) -> None:
    start = clock()
    timed.add_schedule("push", TOPIC, b"", every=10 * MINUTE, misfire="all")
    clock.advance(timedelta(days=30))
    timed.advance_schedules()
    messages = read(timed)
    assert occurrences(messages) == [start + n * 10 * MINUTE for n in range(1, 30 * 24 * 6 + 1)]
    assert {message.deliver_at for message in messages} == {clock()}
    found = timed.find(messages[0].message_id)
    assert found is not None
    assert found.asked_at == start + 10 * MINUTE


def test_d18_a_long_gap_is_sent_in_transactions_of_bounded_size(timed: Broker, clock: Clock) -> None:
    timed.add_schedule("push", TOPIC, b"", every=SECOND, misfire="all")
    clock.advance(timedelta(minutes=20))
    timed.advance_schedules()
    assert len(read(timed)) == 20 * 60
    with connected(timed.dsn) as connection:
        sizes = ask(connection, "select count(*) from duewheel.any_message group by xid")
    assert max(size for (size,) in sizes) <= OCCURRENCES_AT_ONCE


def test_d18_schedules_that_were_missed_for_long_do_not_hold_up_others(timed: Broker, clock: Clock) -> None:
    from duewheel.store.operations import occurrences

    for n in range(3):
        timed.add_schedule(f"behind-{n}", TOPIC, b"", every=SECOND, misfire="all")
    clock.advance(DAY)
    timed.add_schedule("punctual", TOPIC, b"", every=90 * SECOND)
    clock.advance(MINUTE)
    with timed.connection() as connection:
        one_round = occurrences.send_occurrences(connection, now=clock())
    assert one_round.more
    assert one_round.sent == 3 * OCCURRENCES_AT_ONCE + 1


def test_d18_pause_takes_back_what_waits_and_resume_goes_on_from_now(timed: Broker, clock: Clock) -> None:
    start = clock()
    timed.add_schedule("push", TOPIC, b"", every=10 * SECOND, misfire="all")
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


def test_d18_what_a_pause_took_back_comes_when_it_is_resumed_in_time(timed: Broker, clock: Clock) -> None:
    start = clock()
    timed.add_schedule("push", TOPIC, b"", every=10 * SECOND)
    clock.set(start + 12 * SECOND)
    for _ in range(3):
        timed.pause_schedule("push")
        timed.resume_schedule("push")
    turn(timed, clock, start + 40 * SECOND)
    assert occurrences(read(timed)) == [start + n * SECOND for n in (10, 20, 30, 40)]


def test_d18_a_pause_before_the_start_keeps_the_start(timed: Broker, clock: Clock) -> None:
    start = clock() + DAY
    timed.add_schedule("push", TOPIC, b"", every=MINUTE, start_at=start)
    timed.pause_schedule("push")
    timed.resume_schedule("push")
    assert timed.schedules()[0].next_at == start


def test_d18_remove_takes_back_what_waits_and_what_came_due_is_delivered(timed: Broker, clock: Clock) -> None:
    start = clock()
    timed.add_schedule("push", TOPIC, b"", every=10 * SECOND)
    clock.advance(10 * SECOND)
    timed.remove_schedule("push")
    assert timed.schedules() == []
    clock.advance(MINUTE)
    timed.advance_schedules()
    assert occurrences(read(timed)) == [start + 10 * SECOND]
    timed.add_schedule("push", TOPIC, b"", every=10 * SECOND)
    turn(timed, clock, clock() + 20 * SECOND)
    assert len(read(timed)) == 2


def test_d18_the_same_schedule_may_be_added_again(timed: Broker, clock: Clock) -> None:
    settings: dict[str, Any] = {"cron": "0 5  * * *", "tag": "t", "properties": {"a": 1}, "start_at": clock()}
    timed.add_schedule("clean-up", TOPIC, b"x", **settings)
    clock.advance(DAY)
    timed.add_schedule("clean-up", TOPIC, b"x", **settings)
    timed.add_schedule("push", TOPIC, b"", every=DAY)
    clock.advance(DAY / 2)
    timed.add_schedule("push", TOPIC, b"", every=timedelta(hours=24))
    assert [schedule.name for schedule in timed.schedules()] == ["clean-up", "push"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
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
    ],
)
def test_a_schedule_with_other_settings_is_refused_and_they_are_named(
    timed: Broker, change: dict[str, Any], said: str
) -> None:
    timed.create_topic("other")
    settings: dict[str, Any] = {"topic": TOPIC, "body": b"x", "cron": "0 5 * * *"}
    timed.add_schedule("clean-up", **settings)
    with pytest.raises(ScheduleExists) as caught:
        timed.add_schedule("clean-up", **{**settings, **change})
    assert f"settings: {said}. " in str(caught.value)


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
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
    ],
)
def test_what_cannot_be_is_refused(
    timed: Broker, change: dict[str, Any], error: type[Exception], said: str
) -> None:
    timed.create_topic("normal", message_type="NORMAL")
    settings: dict[str, Any] = {"name": "clean-up", "topic": TOPIC, "body": b"x", "cron": "0 5 * * *"}
    with pytest.raises(error, match=said):
        timed.add_schedule(**{**settings, **change})
    assert timed.schedules() == []


def test_unknown_schedules_are_refused(timed: Broker) -> None:
    for act in (timed.remove_schedule, timed.pause_schedule, timed.resume_schedule):
        with pytest.raises(UnknownSchedule, match="nothing"):
            act("nothing")


def test_the_list_tells_what_was_given_and_where_it_stands(timed: Broker, clock: Clock) -> None:
    start = clock()
    timed.add_schedule(
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


def test_d18_an_occurrence_beyond_the_maximum_delay_is_sent_when_it_comes_within_reach(
    timed: Broker, clock: Clock
) -> None:
    start = clock()
    timed.create_topic("short", max_delay=5 * SECOND, out_of_range="deliver")
    timed.add_schedule("push", "short", b"", every=20 * SECOND)
    consumer = timed.consumer("short", "g")
    for second in range(1, 41):
        clock.set(start + second * SECOND)
        timed.advance_schedules()
        batch = consumer.receive(10)
        assert occurrences(list(batch)) == ([clock()] if second % 20 == 0 else [])


def test_a_deleted_topic_takes_its_schedules_along(timed: Broker, clock: Clock) -> None:
    timed.add_schedule("push", TOPIC, b"", every=MINUTE)
    timed.delete_topic(TOPIC)
    assert timed.schedules() == []
    timed.create_topic(TOPIC)
    timed.add_schedule("push", TOPIC, b"", every=2 * MINUTE)
    turn(timed, clock, clock() + 2 * MINUTE)
    assert len(read(timed)) == 1


@pytest.mark.owner
def test_x15_a_schedule_that_cannot_be_sent_does_not_stop_the_others(
    timed: Broker, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    timed.add_schedule("broken", TOPIC, b"", cron="* * * * *")
    timed.add_schedule("sound", TOPIC, b"", cron="* * * * *")
    with connected(timed.dsn) as connection:
        ask(connection, "update duewheel.schedule set time_zone = 'Mars/Olympus' where name = 'broken'")
    clock.advance(MINUTE + 30 * SECOND)
    with caplog.at_level(logging.WARNING):
        timed.advance_schedules()
    assert "broken" in caplog.text
    clock.advance(MINUTE)
    assert [m.properties["schedule"] for m in read(timed)].count("sound") == 2


@pytest.mark.slow
def test_d18_many_at_once_send_each_occurrence_once(timed: Broker, clock: Clock) -> None:
    start = clock()
    for n in range(4):
        timed.add_schedule(f"push-{n}", TOPIC, b"", every=SECOND, misfire="all")
    clock.advance(timedelta(minutes=15))
    with beside() as begin:
        rounds = [begin(timed.advance_schedules) for _ in range(6)]
    sent = sum(a_round.result() for a_round in rounds)
    messages = read(timed)
    assert sent + 4 * 60 >= len(messages)
    for n in range(4):
        own = [m for m in messages if m.properties["schedule"] == f"push-{n}"]
        assert occurrences(own) == [start + second * SECOND for second in range(1, 15 * 60 + 1)]
