"""Groups and topics that are made and removed: what stands still shows, and nothing is used up (X19, X20)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import psycopg2
import pytest
from tests.proof.waiting import ask, beside, connected, until_blocked

from duewheel.store import Broker
from duewheel.store.errors import (
    InvalidArgument,
    TopicExists,
    UnknownTopic,
)

NOW = timedelta(0)
SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
LAST_ID = 1_048_575


class Clock(Protocol):
    def advance(self, by: timedelta) -> datetime: ...
    def set(self, now: datetime) -> datetime: ...


@pytest.fixture
def topic(broker: Broker) -> Broker:
    broker.create_topic("t", queues=2)
    return broker


def rows(broker: Broker, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
    with connected(broker.dsn) as connection:
        return ask(connection, statement, *parameters)


def ids(broker: Broker) -> tuple[Any, ...]:
    """The ids in use, and how many were drawn."""
    (counted,) = rows(
        broker,
        "select (select array_agg(topic_id order by 1) from duewheel.topic),"
        " (select array_agg(group_id order by 1) from duewheel.consumer_group),"
        " (select last_value from duewheel.topic_topic_id_seq),"
        " (select last_value from duewheel.consumer_group_group_id_seq),"
        " (select last_value from duewheel.schedule_schedule_id_seq)",
    )
    return counted


# --- ids


CALLS: dict[str, Callable[[Broker], object]] = {
    "create_topic": lambda b: b.create_topic("t", queues=2),
    "subscribe": lambda b: b.consumer("t", "g"),
    "subscribe an instance": lambda b: b.consumer("t", "all", name="one", mode="broadcasting"),
    "add_schedule": lambda b: b.add_schedule("s", "t", b"", cron="0 5 * * *"),
}


@pytest.mark.parametrize("call", CALLS)
def test_x19_what_is_called_again_and_again_takes_no_id(topic: Broker, call: str) -> None:
    CALLS[call](topic)
    before = ids(topic)
    with beside() as start:
        calls = [start(lambda: [CALLS[call](topic) for _ in range(125)]) for _ in range(8)]
    for each in calls:
        each.result()
    assert ids(topic) == before


def test_x19_a_thousand_receives_take_no_id(topic: Broker) -> None:
    receives = (
        "select count(r) from generate_series(1, 1000) n, duewheel.receive('t', 'g', max_messages => n) r"
    )
    topic.consumer("t", "g")
    before = ids(topic)
    rows(topic, receives)
    assert ids(topic) == before


@pytest.mark.parametrize(
    "call",
    [
        lambda b: b.create_topic("t", queues=3),
        lambda b: b.create_topic("u", queues=65),
        lambda b: b.consumer("u", "g"),
        lambda b: b.consumer("t", "g", mode="broadcasting"),
        lambda b: b.consumer("t", "g h"),
    ],
)
def test_x19_what_fails_again_and_again_takes_no_id(topic: Broker, call: Callable[[Broker], object]) -> None:
    topic.consumer("t", "g")
    before = ids(topic)
    for _ in range(20):
        with pytest.raises((InvalidArgument, TopicExists, UnknownTopic)):
            call(topic)
    assert ids(topic) == before


def test_x19_topics_that_are_made_at_once_take_one_id(topic: Broker) -> None:
    before = ids(topic)[2]
    with beside() as start:
        for made in [start(lambda: topic.create_topic("u")) for _ in range(8)]:
            made.result()
    assert ids(topic)[2] == before + 1


def test_x19_groups_leave_ids_for_topics(topic: Broker) -> None:
    rows(topic, "select setval('duewheel.topic_topic_id_seq', 999999)")
    topic.consumer("t", "g")
    topic.create_topic("u")
    ((highest_of_groups,),) = rows(
        topic, "select max(topic_id) from duewheel.topic where parent_topic_id is not null"
    )
    assert highest_of_groups <= 1_000_000


def test_x19_the_groups_of_a_topic_are_limited(topic: Broker) -> None:
    """Rows of the right shape: making them all would take minutes."""
    rows(
        topic,
        "with own as ("
        "  insert into duewheel.topic (topic_id, name, message_type, queues, max_delay, out_of_range,"
        "    granularity, retention, delay_levels, parent_topic_id)"
        "  overriding system value"
        "  select 1000 + n, '%%RETRY%%' || n || '%%t', 'RETRY', 1, max_delay, out_of_range,"
        "    granularity, retention, delay_levels, topic_id"
        "  from duewheel.topic, generate_series(1, 10000) n where name = 't' returning topic_id"
        "), made as ("
        "  insert into duewheel.consumer_group (group_id, name) overriding system value"
        "  select topic_id, 'g' || topic_id from own returning group_id"
        ") insert into duewheel.subscription (group_id, topic_id, retry_topic_id)"
        "  select m.group_id, t.topic_id, m.group_id from made m, duewheel.topic t where t.name = 't'",
    )
    with pytest.raises(InvalidArgument, match=r'topic "t" has 10000 groups; the limit is 10000'):
        topic.consumer("t", "one.more")
    topic.consumer("t", "g1001")
    topic.create_topic("u")
    topic.consumer("u", "one.more")


def test_x20_what_is_left_of_deleted_topics_and_groups_goes_with_their_messages(
    timed_broker: Broker, clock: Clock
) -> None:
    broker = timed_broker
    clock.set(datetime.now(UTC))
    broker.create_topic("t")
    broker.create_topic("kept")
    used_by = broker.consumer("t", "g")
    broker.consumer("kept", "g")
    for _ in range(3):
        broker.send("t", b"", delay=NOW, idempotency_key="i")
    clock.advance(SECOND)
    used_by.nack(used_by.receive(), HOUR)
    broker.delete_topic("t")
    broker.maintain()
    clock.advance(2 * DAY)
    broker.maintain()
    counted = "select count(*) from duewheel.topic where name like '%%~deleted~%%'"
    assert rows(broker, counted) != [(0,)], "its messages are still there"
    assert [group.topic for group in broker.groups()] == ["kept"]
    clock.advance(5 * DAY)
    for _ in range(3):
        broker.maintain()
    assert rows(broker, counted) == [(0,)]
    assert rows(
        broker,
        "select count(*) from duewheel.tick t where not exists ("
        " select from duewheel.topic o where o.topic_id = t.topic_id)",
    ) == [(0,)]
    broker.create_topic("t")
    broker.consumer("t", "g")


# --- topics beside others


def test_x20_a_group_that_is_made_while_its_topic_is_deleted_goes_with_it(topic: Broker) -> None:
    with connected(topic.dsn, autocommit=False) as subscriber, beside() as start:
        ask(subscriber, "select duewheel.subscribe('t', 'g')")
        with connected(topic.dsn) as deleting:
            deleted = start(lambda: ask(deleting, "select duewheel.delete_topic('t')"))
            until_blocked(topic.dsn, deleting.get_backend_pid())
            subscriber.commit()
            deleted.result()
    assert live_topics(topic) == []
    topic.create_topic("t")
    topic.consumer("t", "g")


def test_x20_a_group_that_is_made_on_a_topic_that_is_just_deleted_is_refused(topic: Broker) -> None:
    with connected(topic.dsn, autocommit=False) as deleting, beside() as start:
        ask(deleting, "select duewheel.delete_topic('t')")
        with connected(topic.dsn) as subscriber:
            made = start(lambda: ask(subscriber, "select duewheel.subscribe('t', 'g')"))
            until_blocked(topic.dsn, subscriber.get_backend_pid())
            deleting.commit()
            with pytest.raises(psycopg2.Error) as refusal:
                made.result()
    assert refusal.value.pgcode == UnknownTopic.sqlstate
    assert live_topics(topic) == []


def test_x20_a_group_is_made_on_the_topic_that_took_the_deleted_ones_place(topic: Broker) -> None:
    with connected(topic.dsn, autocommit=False) as deleting, beside() as start:
        ask(deleting, "select duewheel.delete_topic('t')")
        ask(deleting, "select duewheel.create_topic('t')")
        with connected(topic.dsn) as subscriber:
            made = start(lambda: ask(subscriber, "select topic_id, made from duewheel.subscribe('t', 'g')"))
            until_blocked(topic.dsn, subscriber.get_backend_pid())
            deleting.commit()
            ((topic_id, is_new),) = made.result()
    assert is_new
    assert rows(topic, "select name from duewheel.topic where topic_id = %s", topic_id) == [("t",)]


def test_x20_retry_topics_that_an_earlier_version_left_behind_are_no_obstacle(topic: Broker) -> None:
    topic.consumer("t", "g")
    rows(
        topic,
        "update duewheel.topic set name = name || '~deleted~' || topic_id, deleted_at = now()"
        " where name = 't'",
    )
    topic.create_topic("t")
    topic.consumer("t", "g")
    assert live_topics(topic) == ["%DLQ%g%t", "%RETRY%g%t", "t"]


def test_x20_two_changes_of_a_topic_at_once_both_stay(topic: Broker) -> None:
    with connected(topic.dsn, autocommit=False) as first, beside() as start:
        ask(first, "select duewheel.update_topic('t', retention => '9 days')")
        with connected(topic.dsn) as second:
            changed = start(lambda: ask(second, "select duewheel.update_topic('t', max_delay => '2 hours')"))
            until_blocked(topic.dsn, second.get_backend_pid())
            first.commit()
            changed.result()
    (found,) = topic.topics()
    assert (found.retention, found.max_delay) == (9 * DAY, 2 * HOUR)


def test_x20_a_topic_that_is_deleted_twice_at_once_is_deleted_once(topic: Broker) -> None:
    with connected(topic.dsn, autocommit=False) as first, beside() as start:
        ask(first, "select duewheel.delete_topic('t')")
        with connected(topic.dsn) as second:
            deleted = start(lambda: ask(second, "select duewheel.delete_topic('t')"))
            until_blocked(topic.dsn, second.get_backend_pid())
            first.commit()
            with pytest.raises(psycopg2.Error) as refusal:
                deleted.result()
    assert refusal.value.pgcode == UnknownTopic.sqlstate


def test_x20_what_is_sent_while_its_topic_is_deleted_does_not_reach_the_next_one(topic: Broker) -> None:
    with connected(topic.dsn, autocommit=False) as sender:
        ask(sender, "select duewheel.send('t', 'late'::text, delay => '0 s')")
        topic.delete_topic("t")
        topic.create_topic("t", queues=2)
        sender.commit()
    topic.tick("t")
    assert not topic.consumer("t", "g").receive()


def live_topics(broker: Broker) -> list[str]:
    found = rows(broker, "select name from duewheel.topic where deleted_at is null order by 1")
    return [name for (name,) in found]
