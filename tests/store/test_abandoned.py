"""Groups that take nothing: what is kept for them past retention, and the end of that."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from datetime import datetime, timedelta

import pytest
from tests.acting import AT_ONCE, DAY, HOUR, rows
from tests.clock import NOW as FIRST
from tests.clock import Clock
from tests.upkeeping import portions
from tests.waiting import connected

from duewheel.store.broker import Broker
from duewheel.store.operations.statistics import GroupNumbers
from duewheel.store.values.messages import MessageType

#: In four queues.
MESSAGES = 40
of_each_type = pytest.mark.parametrize("message_type", ["DELAY", "FIFO"])


@pytest.fixture
def message_type() -> str:
    return "DELAY"


@pytest.fixture
def shop(timed_broker: Broker, message_type: str) -> Broker:
    """Two groups may take messages of 1 000 bytes."""
    timed_broker.create_topic("t", message_type=message_type, retention=3 * DAY)
    for group in ("reader", "away"):
        timed_broker.consumer("t", group)
    send(timed_broker, MESSAGES)
    timed_broker.maintain()
    return timed_broker


def send(broker: Broker, messages: int) -> None:
    is_fifo = broker.topics()[0].message_type is MessageType.FIFO
    broker.send_many(
        "t",
        [
            {"body": os.urandom(1000), **({"message_group": f"{n % 8}"} if is_fifo else {"delay": AT_ONCE})}
            for n in range(messages)
        ],
    )
    broker.tick("t")


def read(broker: Broker, group: str, most: int = 10_000) -> int:
    consumer, taken = broker.consumer("t", group), 0
    while taken < most and (batch := consumer.receive(max_messages=min(100, most - taken))):
        consumer.ack(batch)
        taken += len(batch)
    return taken


def upkeep(broker: Broker, clock: Clock, rounds: int = 1) -> tuple[str, ...]:
    """Some rounds of upkeep, an hour apart, and the warnings of all of them."""
    warnings: list[str] = []
    for _ in range(rounds):
        warnings += broker.maintain().warnings
        clock.advance(HOUR)
    return tuple(warnings)


def later(broker: Broker, clock: Clock, by: timedelta) -> tuple[str, ...]:
    """Time passes, in which upkeep is done: the warnings of the last of it."""
    clock.advance(by - HOUR)
    broker.tick("t")
    upkeep(broker, clock)
    return upkeep(broker, clock)


def losses(warnings: Iterable[str]) -> int:
    """How many messages abandoned groups have lost."""
    return sum(int(found[1]) for one in warnings if (found := re.search(r"it has lost (\d+) ", one)))


def numbers(broker: Broker, group: str) -> GroupNumbers:
    return next(one for one in broker.stats().topics[0].groups if one.group == group)


def slots(broker: Broker, at: datetime) -> int:
    """Whether the slot of an instant is there, or messages have outlived it."""
    found = "select count(*)::integer from duewheel.{} where starts_at <= %s and ends_at > %s"
    return sum(rows(broker, found.format(name), at, at)[0][0] for name in ("slot", "outlived_slot"))


@of_each_type
def test_d09_a_group_that_takes_nothing_is_warned_of(shop: Broker, clock: Clock) -> None:
    assert later(shop, clock, 2 * DAY) == ()
    assert read(shop, "reader") == MESSAGES
    assert numbers(shop, "away").abandoned_since is None
    (warning,) = later(shop, clock, 5 * DAY)
    assert warning.startswith(
        f"group away has taken nothing of topic t since {FIRST.isoformat()}: about {MESSAGES} messages past"
    )
    away, reader = numbers(shop, "away"), numbers(shop, "reader")
    assert (away.abandoned_since, away.kept_messages) == (FIRST, MESSAGES)
    assert MESSAGES * 1000 < away.kept_bytes < MESSAGES * 1400
    assert f"{away.kept_bytes} bytes" in warning
    assert (reader.abandoned_since, reader.kept_messages, reader.kept_bytes) == (None, 0, 0)
    assert slots(shop, FIRST)
    # One that comes back finds all of it.
    assert read(shop, "away") == MESSAGES
    assert later(shop, clock, DAY) == ()
    assert not slots(shop, FIRST)


def test_d09_a_slow_group_is_not_abandoned(shop: Broker, clock: Clock) -> None:
    shop.update_settings(abandoned_after=DAY)
    read(shop, "reader")
    days = 10
    for _ in range(days):
        assert later(shop, clock, DAY - HOUR) == ()
        assert read(shop, "away", most=1) == 1
    assert read(shop, "away") == MESSAGES - days


def test_d09_a_group_that_works_on_a_message_is_not_abandoned(shop: Broker, clock: Clock) -> None:
    shop.update_settings(abandoned_after=DAY)
    read(shop, "reader")
    consumer = shop.consumer("t", "away")
    (message,) = consumer.receive(max_messages=1)
    for _ in range(12):
        consumer.change_invisible_duration(message, 12 * HOUR)
        clock.advance(9 * HOUR)
        upkeep(shop, clock, rounds=2)
    consumer.ack(message)
    assert read(shop, "away") == MESSAGES - 1
    assert upkeep(shop, clock) == ()


@pytest.mark.slow
@pytest.mark.parametrize(("message_type", "has_wheel"), [("DELAY", True), ("FIFO", False)])
def test_d09_an_abandoned_group_loses_retries_and_leases(shop: Broker, clock: Clock, has_wheel: bool) -> None:
    shop.update_settings(abandoned_after=10 * DAY)
    read(shop, "reader")
    consumer = shop.consumer("t", "away")
    consumer.nack(consumer.receive(max_messages=2), delay=DAY)
    assert len(consumer.receive(max_messages=3, invisible=HOUR)) == 3
    lost = 0
    for _ in range(24):
        clock.advance(DAY)
        if has_wheel:
            shop.tick("t")
        lost += losses(upkeep(shop, clock, rounds=2))
    assert lost == MESSAGES
    assert numbers(shop, "away").kept_messages == 0
    assert read(shop, "away") == 0
    assert not slots(shop, FIRST)


def test_d09_over_a_thousand_messages_in_a_queue_are_estimated(timed_broker: Broker, clock: Clock) -> None:
    timed_broker.create_topic("t", queues=1, retention=3 * DAY)
    timed_broker.consumer("t", "away")
    send(timed_broker, 3000)
    rows(timed_broker, "analyze duewheel.message")
    later(timed_broker, clock, 5 * DAY)
    away = numbers(timed_broker, "away")
    assert 1000 <= away.kept_messages < 10_000
    assert away.kept_bytes == pytest.approx(1200 * away.kept_messages, rel=0.2)


def test_d09_a_paused_group_is_not_abandoned_and_keeps_as_well(shop: Broker, clock: Clock) -> None:
    shop.update_settings(abandoned_after=2 * DAY)
    read(shop, "reader")
    shop.pause_group("away")
    (warning,) = later(shop, clock, 5 * DAY)
    assert warning.startswith(
        f"group away has been paused on topic t since {FIRST.isoformat()}: about {MESSAGES} "
    )
    away = numbers(shop, "away")
    assert (away.abandoned_since, away.kept_messages) == (None, MESSAGES)
    # Its consumers have as long to come back as any.
    shop.resume_group("away")
    resumed_at = clock()
    assert later(shop, clock, DAY) == ()
    assert numbers(shop, "away").ready == MESSAGES
    (warning,) = later(shop, clock, 3 * DAY)
    assert f"since {resumed_at.isoformat()}, which is longer than" in warning
    assert f"it has lost {MESSAGES} messages" in warning


@of_each_type
def test_d09_an_abandoned_group_loses_messages_past_retention(
    shop: Broker, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What is lost in all portions is said at once.
    monkeypatch.setattr("duewheel.store.wheel.upkeep._FIRST_ROWS", 3)
    shop.update_settings(abandoned_after=10 * DAY)
    read(shop, "reader")
    later(shop, clock, 8 * DAY)
    send(shop, 3)
    read(shop, "reader")
    assert numbers(shop, "away").kept_messages == MESSAGES
    clock.advance(2 * DAY)
    (warning,) = upkeep(shop, clock)
    assert f"group away has taken nothing of topic t since {FIRST.isoformat()}" in warning
    assert f"it has lost {MESSAGES} messages" in warning
    assert not slots(shop, FIRST)
    # Said once, and it is abandoned as before.
    assert upkeep(shop, clock, 2) == ()
    (warning,) = later(shop, clock, 5 * DAY)
    assert f"since {FIRST.isoformat()}" in warning
    assert "it has lost 3 messages" in warning
    send(shop, 2)
    assert read(shop, "away") == 2


def test_d09_after_a_rest_of_upkeep_consumers_have_an_hour(shop: Broker, clock: Clock) -> None:
    shop.update_settings(abandoned_after=10 * DAY)
    clock.advance(40 * DAY)
    shop.tick("t")
    away, reader = shop.maintain().warnings
    assert "are kept for it" in away
    assert "are kept for it" in reader
    assert read(shop, "away", 1) == 1
    # However often upkeep is done meanwhile: by another wheel, or as it has left something.
    clock.advance(HOUR / 2)
    assert all("has lost" not in warning for warning in shop.maintain().warnings)
    clock.advance(HOUR / 2)
    (warning,) = shop.maintain().warnings
    assert f"group reader has taken nothing of topic t since {FIRST.isoformat()}" in warning
    assert f"it has lost {MESSAGES} messages" in warning
    assert read(shop, "away") == MESSAGES - 1
    assert read(shop, "reader") == 0


def test_d09_abandoned_groups_continue_with_daily_upkeep(shop: Broker, clock: Clock) -> None:
    shop.update_settings(abandoned_after=10 * DAY)
    for _ in range(9):
        clock.advance(DAY)
        assert all("has lost" not in warning for warning in shop.maintain().warnings)
    clock.advance(DAY)
    lost = [warning for warning in shop.maintain().warnings if f"has lost {MESSAGES} messages" in warning]
    assert len(lost) == 2


@of_each_type
def test_d09_upkeep_advances_a_group_by_one_portion_at_most(shop: Broker, clock: Clock) -> None:
    shop.update_settings(abandoned_after=DAY)
    read(shop, "reader")
    clock.advance(10 * DAY)
    shop.tick("t")
    shop.maintain()
    clock.advance(HOUR)
    queues, rows, lost = 4, 3, 0
    with connected(shop.dsn) as connection:
        for state in portions(connection, "watch", rows, clock()):
            for one in state["report"].get("watched", []):
                assert 0 < one["lost"] <= queues * rows
                lost += one["lost"]
    assert lost == MESSAGES


def test_d09_of_many_groups_the_twenty_that_keep_most_are_named(shop: Broker, clock: Clock) -> None:
    for number in range(24):
        shop.consumer("t", f"g{number}")
    send(shop, 4)
    warnings = later(shop, clock, 5 * DAY)
    assert len(warnings) == 21
    assert "group reader" in warnings[0] + warnings[1]
    assert warnings[-1].startswith("6 other groups keep messages past retention")


#: A stream begins with the group. It reads the clock of the database; its leases get the time of the test.
STREAM = """
with begun as materialized (
    select s.group_id, count(b.stream) as queues from duewheel.subscription s
    cross join lateral duewheel.stream_start(s.group_id, s.topic_id, 'mine', 'earliest', null, %s) b
    group by s.group_id
)
select queues from begun
"""
STREAM_LEASES = """
with dated as (update duewheel.lease l set leased_at = %s where l.consumer is not null returning 1)
select count(*) from dated
"""


@pytest.mark.owner
@pytest.mark.parametrize(("rest", "abandoned_after"), [(30 * DAY, None), (30 * DAY, 30 * DAY), (None, None)])
def test_d09_an_abandoned_group_of_a_stream_is_deleted(
    timed_broker: Broker, clock: Clock, rest: timedelta | None, abandoned_after: timedelta | None
) -> None:
    timed_broker.create_topic("t", retention=3 * DAY)
    if abandoned_after is not None:
        timed_broker.update_settings(abandoned_after=abandoned_after)
    timed_broker.consumer("t", "drawn")
    send(timed_broker, MESSAGES)
    timed_broker.maintain()
    rows(timed_broker, STREAM, rest)
    rows(timed_broker, STREAM_LEASES, clock())
    (warning,) = later(timed_broker, clock, 20 * DAY)
    assert "are kept for it" in warning
    (warning,) = later(timed_broker, clock, 15 * DAY)
    if rest is None:
        assert "are kept for it" in warning
        return
    assert f"it is deleted, with about {MESSAGES} messages past retention" in warning
    assert timed_broker.stats().topics[0].groups == ()
    assert upkeep(timed_broker, clock) == ()
    assert not slots(timed_broker, FIRST)


@pytest.mark.owner
def test_d09_upkeep_leaves_a_stream_where_its_checkpoint_says(timed_broker: Broker, clock: Clock) -> None:
    """Only the stream moves its group, also behind messages that are recalled."""
    timed_broker.create_topic("t", retention=3 * DAY)
    timed_broker.consumer("t", "lake")
    timed_broker.maintain()
    timed_broker.send_many("t", [{"body": b"", "tag": "paid", "delay": HOUR}] * MESSAGES)
    timed_broker.recall_many("t", tag="paid")
    rows(timed_broker, STREAM, None)
    positions = "select queue, max(n) from duewheel.lease group by queue order by queue"
    before = rows(timed_broker, positions)
    clock.advance(DAY)
    timed_broker.tick("t")
    upkeep(timed_broker, clock)
    assert rows(timed_broker, positions) == before
