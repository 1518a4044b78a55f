"""Groups and topics that are made and removed: what stands still shows, and nothing is used up (X19, X20)."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import Any

import psycopg2
import pytest
from tests.acting import AT_ONCE, DAY, HOUR, SECOND, rows
from tests.clock import Clock
from tests.waiting import ask, beside, connected, until, until_blocked, until_somebody_waits

from duewheel.store import Broker, Message
from duewheel.store.consuming.consumer import Consumer
from duewheel.store.values.errors import (
    InvalidArgument,
    LeaseLost,
    TopicExists,
    UnknownGroup,
    UnknownTopic,
    WrongMessageType,
)
from duewheel.store.values.retry_policy import RetryPolicy

LAST_ID = 1_048_575


@pytest.fixture
def topic(broker: Broker) -> Broker:
    broker.create_topic("t", queues=2)
    return broker


def ids(broker: Broker) -> tuple[Any, ...]:
    """The ids in use, and how many were drawn."""
    (counted,) = rows(
        broker,
        "select (select array_agg(topic_id order by 1) from duewheel.topic),"
        " (select array_agg(group_id order by 1) from duewheel.subscription),"
        " (select last_value from duewheel.topic_topic_id_seq),"
        " (select last_value from duewheel.subscription_group_id_seq),"
        " (select last_value from duewheel.schedule_schedule_id_seq)",
    )
    return counted


def left_of_groups(broker: Broker) -> list[tuple[Any, ...]]:
    """The rows that name a group after a round of upkeep, of any table, by table."""
    broker.maintain()
    tables = (
        *("consumer_group", "subscription", "lease", "lease_event", "lease_extension"),
        *("lease_answer", "lease_message", "fifo_backlog"),
    )
    counts = ", ".join(f"(select count(*) from duewheel.{table})" for table in tables)
    return rows(broker, f"select {counts}")


def used(broker: Broker, group: str = "g", topic: str = "t") -> tuple[Consumer, list[Message]]:
    """A group with an answered message, a retry, a dead letter, and messages that its consumer still has."""
    consumer = broker.consumer(topic, group, retry=RetryPolicy.unordered(1))
    broker.send_many(topic, [{"body": b"", "delay": AT_ONCE}] * 6)
    broker.tick(topic)
    held: list[Message] = []
    while batch := consumer.receive(100):
        held += batch
    consumer.ack(held.pop())
    consumer.nack(held.pop(), HOUR)
    consumer.nack(held.pop(), AT_ONCE)
    (failed,) = until(consumer.receive, "the retry")
    consumer.nack(failed)
    return consumer, held


# --- deleting a group


def test_x20_a_deleted_group_leaves_nothing_and_can_be_remade(topic: Broker) -> None:
    consumer, held = used(topic)
    topic.delete_group("g")
    assert topic.groups() == []
    with pytest.raises(UnknownGroup, match="the group no longer reads topic"):
        consumer.receive()
    with pytest.raises(LeaseLost, match="deleted"):
        consumer.ack(held)
    with pytest.raises(UnknownGroup):
        topic.dead_letters("g")
    with pytest.raises(UnknownGroup):
        topic.delete_group("g")
    anew = topic.consumer("t", "g")
    assert anew.group_id != consumer.group_id
    assert [message.attempt for message in anew.receive()] == [1] * 6
    topic.delete_group("g")
    assert left_of_groups(topic) == [(0,) * 8]
    anew = topic.consumer("t", "g")
    assert [message.attempt for message in anew.receive()] == [1] * 6
    with pytest.raises(UnknownGroup):
        consumer.receive()
    topic.delete_topic("t")
    with pytest.raises(UnknownTopic, match='topic "t" was deleted'):
        anew.receive()


def test_x20_answers_that_commit_after_their_group_was_deleted_are_forgotten(topic: Broker, dsn: str) -> None:
    """Upkeep has forgotten the leases by then."""
    consumer, held = used(topic)
    first, second = held[:2]
    with connected(dsn, autocommit=False) as connection:
        consumer.change_invisible_duration(first, HOUR, connection=connection)
        consumer.ack([first, second], connection=connection)
        topic.delete_group("g")
        topic.maintain()
        connection.commit()
    assert left_of_groups(topic) == [(0,) * 8]


def test_x20_a_group_is_deleted_on_one_topic(topic: Broker) -> None:
    topic.create_topic("u")
    used(topic)
    used(topic, topic="u")
    used(topic, group="other")
    topic.delete_group("g", topic="t")
    assert [(group.group, group.topic) for group in topic.groups()] == [("g", "u"), ("other", "t")]
    assert len(topic.dead_letters("g")) == 1
    with pytest.raises(UnknownGroup, match='"g" does not read topic "t"'):
        topic.delete_group("g", topic="t")
    with pytest.raises(UnknownTopic):
        topic.delete_group("g", topic="v")
    topic.delete_group("g", topic="u")
    with pytest.raises(UnknownGroup, match='no consumer group "g"'):
        topic.delete_group("g")


def test_x20_a_fifo_and_a_broadcasting_group_are_deleted_whole(topic: Broker) -> None:
    topic.create_topic("steps", message_type="FIFO")
    for step in ("1", "2", "3"):
        topic.send("steps", step, message_group="a")
    topic.tick("steps")
    consumer = topic.consumer("steps", "g")
    assert len(consumer.receive(1)) == 1
    assert not consumer.receive(1)
    assert rows(topic, "select count(*) from duewheel.fifo_backlog") != [(0,)]
    topic.delete_group("g")
    anew = topic.consumer("steps", "g")
    assert anew.receive(1)[0].body == b"1"
    topic.delete_group("g")
    assert left_of_groups(topic) == [(0,) * 8]
    topic.delete_topic("steps")
    for name in ("one", "two", "three"):
        topic.consumer("t", "all", name=name, mode="broadcasting")
    topic.delete_group("all/two")
    (group,) = (group for group in topic.groups() if group.topic == "t")
    assert group.instances == ("one", "three")
    topic.delete_group("all")
    assert [group.topic for group in topic.groups()] == []
    topic.consumer("t", "all")


def test_x20_a_large_group_is_deleted_with_few_locks_at_a_time(broker: Broker) -> None:
    broker.create_topic("wide", queues=64)
    for number in range(4):
        broker.consumer("wide", "all", name=f"{number}", mode="broadcasting")
    with connected(broker.dsn, autocommit=False) as connection:
        assert ask(connection, "select * from duewheel.delete_group('all')") == [(1, True)]
        ((locks,),) = ask(
            connection, "select count(*) from pg_locks where pid = pg_backend_pid() and locktype = 'advisory'"
        )
        assert locks < 70
    broker.delete_group("all")
    assert left_of_groups(broker) == [(0,) * 8]


def test_x20_a_receive_in_an_open_transaction_is_waited_for(topic: Broker) -> None:
    topic.consumer("t", "g")
    topic.send("t", b"", delay=AT_ONCE)
    topic.tick("t")
    with connected(topic.dsn, autocommit=False) as reader, beside() as start:
        assert ask(reader, "select receipt_handle from duewheel.receive('t', 'g')")
        deleted = start(lambda: topic.delete_group("g"))
        until_somebody_waits(topic.dsn)
        reader.commit()
        deleted.result()
    assert left_of_groups(topic) == [(0,) * 8]


@pytest.mark.owner
def test_x20_an_answer_on_its_way_does_not_reach_a_later_group(topic: Broker) -> None:
    """Whoever has the same id: it is given again after all others."""
    consumer = topic.consumer("t", "g")
    topic.send("t", b"", delay=AT_ONCE)
    topic.tick("t")
    batch = consumer.receive()
    with connected(topic.dsn, autocommit=False) as answering:
        consumer.ack(batch, connection=answering)
        topic.delete_group("g")
        answering.commit()
    rows(topic, "select setval('duewheel.subscription_group_id_seq', %s, false)", consumer.group_id)
    later = topic.consumer("t", "later")
    assert later.group_id != consumer.group_id
    assert len(later.receive()) == 1


def test_x20_a_mistyped_group_is_made_only_where_that_is_wanted(topic: Broker) -> None:
    with connected(topic.dsn) as connection:
        with pytest.raises(psycopg2.Error, match="does not read topic") as refusal:
            ask(connection, "select * from duewheel.receive('t', 'cancelr', create_group => false)")
        assert refusal.value.pgcode == UnknownGroup.sqlstate
        assert topic.groups() == []
        ask(connection, "select * from duewheel.receive('t', 'cancelr')")
        ask(connection, "select * from duewheel.receive('t', 'cancelr', create_group => false)")
    assert [group.group for group in topic.groups()] == ["cancelr"]


# --- what stands still


def test_x20_a_stalled_group_is_shown(timed_broker: Broker, clock: Clock) -> None:
    broker = timed_broker
    broker.create_topic("t", retention=DAY)
    idle, reader = (broker.consumer("t", name) for name in ("idle", "reader"))

    def stalled() -> dict[str, bool]:
        with connected(broker.dsn) as connection:
            return dict(
                ask(
                    connection,
                    "select g.name, (duewheel.progress(s.group_id, s.topic_id, %s)).stalled_since is not null"
                    " from duewheel.subscription s join duewheel.consumer_group g on g.name = s.group_name",
                    broker.now(),
                )
            )

    clock.advance(5 * DAY)
    broker.tick("t")
    assert stalled() == {"idle": False, "reader": False}, "there is nothing to read"
    broker.send("t", b"", delay=AT_ONCE)
    broker.tick("t")
    clock.advance(DAY / 2)
    assert stalled() == {"idle": False, "reader": False}, "it has not been ready for long"
    reader.ack(reader.receive())
    clock.advance(DAY)
    assert stalled() == {"idle": True, "reader": False}
    idle.ack(idle.receive())
    assert stalled() == {"idle": False, "reader": False}


# --- ids


@pytest.mark.owner
def test_x19_repeated_calls_take_no_id(topic: Broker) -> None:
    calls: list[Callable[[Broker], object]] = [
        lambda b: b.create_topic("t", queues=2),
        lambda b: b.consumer("t", "g"),
        lambda b: b.consumer("t", "all", name="one", mode="broadcasting"),
        lambda b: b.create_schedule("s", "t", b"", cron="0 5 * * *"),
        lambda b: rows(b, "select count(r) from generate_series(1, 100) n, duewheel.receive('t', 'g') r"),
    ]
    failing: list[Callable[[Broker], object]] = [
        lambda b: b.create_topic("t", queues=3),
        lambda b: b.create_topic("u", queues=65),
        lambda b: b.consumer("u", "g"),
        lambda b: b.consumer("t", "g", mode="broadcasting"),
        lambda b: b.consumer("t", "g h"),
    ]
    for call in calls:
        call(topic)
    before = ids(topic)
    with beside() as start:
        for made in [start(lambda call=call: [call(topic) for _ in range(25)]) for call in calls * 4]:
            made.result()
    for call in failing:
        for _ in range(20):
            with pytest.raises((InvalidArgument, TopicExists, UnknownTopic)):
                call(topic)
    assert ids(topic) == before
    # Of those that make the same topic at once, one takes an id.
    with beside() as start:
        for made in [start(lambda: topic.create_topic("u")) for _ in range(8)]:
            made.result()
    assert ids(topic)[2] == before[2] + 1


@pytest.mark.owner
def test_x19_ids_come_round_again(topic: Broker) -> None:
    """However often instances start under new names: those in use are passed over."""
    kept = topic.consumer("t", "kept")
    first = topic.consumer("t", "gone", name="first", mode="broadcasting").group_id
    rows(topic, f"select setval('duewheel.subscription_group_id_seq', {LAST_ID - 1})")
    rows(topic, f"select setval('duewheel.topic_topic_id_seq', {LAST_ID - 1})")
    last = topic.consumer("t", "gone", name="last", mode="broadcasting").group_id
    topic.delete_group("gone/first")
    topic.maintain()
    following = topic.consumer("t", "gone", name="following", mode="broadcasting").group_id
    assert (last, following) == (LAST_ID, first)
    assert topic.consumer("t", "more").group_id not in {kept.group_id, last, following}
    topic.create_topic("u")
    used_ids = [number for (number,) in rows(topic, "select topic_id from duewheel.topic order by 1")]
    assert len(used_ids) == len(set(used_ids))
    # Groups leave the last ones to topics.
    rows(topic, "select setval('duewheel.topic_topic_id_seq', 999999)")
    topic.consumer("t", "late")
    of_groups = "select max(topic_id) from duewheel.topic where name like '%late%'"
    assert rows(topic, of_groups)[0][0] <= 1_000_000


def test_x19_a_reason_is_kept_as_far_as_it_can_be_read(topic: Broker) -> None:
    """Each message of the lease has it: a long one of a large lease would fill the disk."""
    consumer = topic.consumer("t", "g", retry=RetryPolicy.unordered(0))
    topic.send("t", b"", delay=AT_ONCE)
    topic.tick("t")
    consumer.nack(consumer.receive(), reason="x" * 1_000_000)
    assert topic.dead_letters("g")[0].reason == "x" * 10_000


@pytest.mark.owner
def test_x19_the_groups_of_a_topic_are_limited(topic: Broker) -> None:
    """Rows of the right shape: making them all would take minutes."""
    rows(
        topic,
        "with own as ("
        "  insert into duewheel.topic (topic_id, name, message_type, queues, max_delay, out_of_range,"
        "    granularity, retention, delay_levels, parent_topic_id)"
        "  overriding system value"
        "  select 1000 + n, '%RETRY%' || n || '%t', 'RETRY', 1, max_delay, out_of_range,"
        "    granularity, retention, delay_levels, topic_id"
        "  from duewheel.topic, generate_series(1, 10000) n where name = 't' returning topic_id"
        "), made as ("
        "  insert into duewheel.consumer_group (name) select 'g' || topic_id from own returning name"
        ") insert into duewheel.subscription (group_id, group_name, topic_id, retry_topic_id)"
        "  overriding system value"
        "  select o.topic_id, 'g' || o.topic_id, t.topic_id, o.topic_id from own o, duewheel.topic t"
        "  where t.name = 't'",
    )
    with pytest.raises(InvalidArgument, match=r'topic "t" has 10000 groups; the limit is 10000'):
        topic.consumer("t", "one.more")
    topic.consumer("t", "g1001")
    topic.create_topic("u")
    topic.consumer("u", "one.more")


def test_x20_rows_of_deleted_topics_go_with_their_messages(timed_broker: Broker, clock: Clock) -> None:
    broker = timed_broker
    clock.set(datetime.now(UTC))
    broker.create_topic("t")
    broker.create_topic("kept")
    used_by = broker.consumer("t", "g")
    broker.consumer("kept", "g")
    for _ in range(3):
        broker.send("t", b"", delay=AT_ONCE, idempotency_key="i")
    clock.advance(SECOND)
    used_by.nack(used_by.receive(), HOUR)
    broker.delete_topic("t")
    broker.maintain()
    clock.advance(2 * DAY)
    broker.maintain()
    counted = "select count(*) from duewheel.topic where name like '%~deleted~%'"
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


def test_x25_upkeep_passes_over_a_group_that_subscribes_just_now(topic: Broker) -> None:
    topic.consumer("t", "g")
    topic.create_topic("other")
    topic.consumer("other", "h")
    for name in "t", "other":
        topic.delete_topic(name)
    topic.create_topic("next")
    forget = (
        "select duewheel.forget_instances(clock_timestamp() + interval '1 min', now() + interval '2 days')"
    )
    with connected(topic.dsn, autocommit=False) as subscribing:
        ask(subscribing, "select duewheel.subscribe('next', 'g')")
        rows(topic, forget)
        assert rows(topic, "select name from duewheel.consumer_group") == [("g",)]
        subscribing.commit()
    rows(topic, forget)
    assert [(group.group, group.topic) for group in topic.groups()] == [("g", "next")]


# --- topics beside others


def second_of(broker: Broker, *statements: str) -> Future[list[tuple[Any, ...]]]:
    """What the last statement answers, which waits for the open transaction of the others."""
    with connected(broker.dsn, autocommit=False) as first, connected(broker.dsn) as second, beside() as start:
        for statement in statements[:-1]:
            ask(first, statement)
        answer = start(lambda: ask(second, statements[-1]))
        until_blocked(broker.dsn, second.get_backend_pid())
        first.commit()
    return answer


def live_topics(broker: Broker) -> list[str]:
    found = rows(broker, "select name from duewheel.topic where deleted_at is null order by 1")
    return [name for (name,) in found]


@pytest.mark.parametrize("name", ["%RETRY%g%t", "%DLQ%g%t"])
def test_x20_what_belongs_to_a_group_goes_with_it_alone(topic: Broker, name: str) -> None:
    """Upkeep would fail for ever on a subscription without it, and retries would be lost."""
    topic.consumer("t", "g")
    calls: list[Callable[[], object]] = [
        lambda: topic.delete_topic(name),
        lambda: topic.update_topic(name, retention=DAY),
        lambda: topic.consumer(name, "h"),
        lambda: topic.consumer(name, "h", name="i", mode="broadcasting"),
    ]
    for call in calls:
        with pytest.raises(WrongMessageType, match=r'belongs to a group of topic "t".*delete the group'):
            call()
    topic.delete_group("g")
    assert live_topics(topic) == ["t"]


def test_x20_a_group_made_while_its_topic_is_deleted_is_deleted(topic: Broker) -> None:
    second_of(topic, "select duewheel.subscribe('t', 'g')", "select duewheel.delete_topic('t')").result()
    assert live_topics(topic) == []
    topic.create_topic("t")
    topic.consumer("t", "g")
    assert live_topics(topic) == ["%DLQ%g%t", "%RETRY%g%t", "t"]


@pytest.mark.parametrize("call", ["subscribe('t', 'g')", "delete_topic('t')"])
def test_x20_a_topic_that_is_just_deleted_is_refused(topic: Broker, call: str) -> None:
    refusal = second_of(topic, "select duewheel.delete_topic('t')", f"select duewheel.{call}").exception()
    assert isinstance(refusal, psycopg2.Error)
    assert refusal.pgcode == UnknownTopic.sqlstate
    assert live_topics(topic) == []


def test_x20_a_group_is_made_on_the_new_topic_of_a_name(topic: Broker) -> None:
    deletes, makes = "select duewheel.delete_topic('t')", "select duewheel.create_topic('t')"
    subscribes = "select topic_id, created from duewheel.subscribe('t', 'g')"
    ((topic_id, is_new),) = second_of(topic, deletes, makes, subscribes).result()
    assert is_new
    assert rows(topic, "select name from duewheel.topic where topic_id = %s", topic_id) == [("t",)]


def test_x20_a_schedule_is_made_on_the_new_topic_of_a_name(topic: Broker) -> None:
    deletes, makes = "select duewheel.delete_topic('t')", "select duewheel.create_topic('t')"
    schedules = (
        "select created from duewheel.create_schedule("
        "'s', 't', '', null, '1 day', 'UTC', null, 'once', null, null, null, now(), now())"
    )
    assert second_of(topic, deletes, makes, schedules).result() == [(True,)]
    assert [schedule.topic for schedule in topic.schedules()] == ["t"]


def test_x20_two_changes_of_a_topic_at_once_both_stay(topic: Broker) -> None:
    changes = "select duewheel.update_topic('t', "
    second_of(topic, f"{changes}retention => '9 days')", f"{changes}max_delay => '2 hours')").result()
    (found,) = topic.topics()
    assert (found.retention, found.max_delay) == (9 * DAY, 2 * HOUR)


def test_x20_a_send_to_a_deleted_topic_never_reaches_the_next(topic: Broker) -> None:
    with connected(topic.dsn, autocommit=False) as sender:
        ask(sender, "select duewheel.send('t', 'late'::text, delay => '0 s')")
        topic.delete_topic("t")
        topic.create_topic("t", queues=2)
        sender.commit()
    topic.tick("t")
    assert not topic.consumer("t", "g").receive()


@pytest.mark.owner
def test_x25_upkeep_skips_a_subscription_locked_by_a_transaction(topic: Broker) -> None:
    """Of a topic that was deleted. It goes with a later upkeep; the others go now."""
    for group in ("held", "left"):
        topic.consumer("t", group)
    topic.delete_topic("t")
    forget = "select duewheel.forget_topics(now() + interval '1 minute', now() + interval '2 days')"
    groups = "select name from duewheel.consumer_group"
    with connected(topic.dsn, autocommit=False) as holder:
        ask(holder, "select from duewheel.subscription where group_name = 'held' for update")
        rows(topic, f"set statement_timeout = '5 s'; {forget}")
        assert rows(topic, groups) == [("held",)]
    rows(topic, forget)
    assert rows(topic, groups) == []


#: Those whose rows go with their slot, or with the topic at once.
FORGOTTEN_ELSEWHERE = ("message", "far_message", "schedule", "subscription", "swept_topic")


@pytest.mark.owner
def test_an_id_that_a_topic_is_given_again_is_in_no_table(broker: Broker) -> None:
    """The next topic of this id would be given such a row."""
    tables = rows(
        broker,
        "select c.relname from pg_class c join pg_attribute a on a.attrelid = c.oid"
        " where a.attname = 'topic_id' and c.relnamespace = 'duewheel'::regnamespace"
        " and c.relkind in ('r', 'p') and not c.relispartition",
    )
    ((source,),) = rows(broker, "select prosrc from pg_proc where proname = 'forget_topics'")
    kept = {name for (name,) in tables if f"'{name}'" not in source}
    assert kept == {*FORGOTTEN_ELSEWHERE}
