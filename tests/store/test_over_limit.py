"""The limit on the size: a look ends with the first unread message, and counts within bounds (X25)."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import pytest
from tests.acting import AT_ONCE, DAY, HOUR, MINUTE, SECOND
from tests.clock import Clock
from tests.store.test_keys import rows_read
from tests.waiting import STOP, ask, beside, connected, until

from duewheel.store.broker import Broker

pytestmark = pytest.mark.owner

SLOT = "message_2026010600"
MANY = 12_000
GROUPS = ("a", "b", "c")
NEEDED = """
select exists (select from duewheel.groups_that_need(s.starts_at, s.ends_at)) from duewheel.slot s
where s.table_name = %s
"""
UNREAD = "select duewheel.slot_unread(s) from duewheel.slot s where s.table_name = %s"


@pytest.fixture
def topic(timed_broker: Broker) -> Broker:
    timed_broker.create_topic("t", queues=1, max_delay=100 * DAY, retention=10 * DAY)
    for group in GROUPS:
        timed_broker.consumer("t", group)
    return timed_broker


def pass_by(broker: Broker, clock: Clock) -> None:
    """What is due in a day is over, released and sealed."""
    clock.advance(3 * DAY)
    broker.tick("t")
    broker.maintain()
    broker.maintain()


def with_rows_read(broker: Broker, statement: str, *parameters: object) -> tuple[Any, int]:
    """As `rows_read`, in a session of its own."""
    with connected(broker.dsn, autocommit=False) as connection:
        return rows_read(connection, statement, *parameters)


def test_x25_a_slot_over_the_limit_is_not_read_to_its_end(topic: Broker, clock: Clock) -> None:
    topic.send_many("t", [{"body": b"x", "delay": DAY}] * MANY)
    pass_by(topic, clock)
    topic.update_settings(retention_bytes=1)
    is_needed, read = with_rows_read(topic, NEEDED, SLOT)
    assert (is_needed, read < 100) == (True, True)
    unread, read = with_rows_read(topic, UNREAD, SLOT)
    for group, one in zip(GROUPS, unread, strict=True):
        assert (one["topic"], one["consumer_group"], one["at_least"]) == ("t", group, True)
        assert 1_000 <= one["messages"] < 3 * MANY
    assert read < MANY * len(GROUPS)
    done = topic.maintain()
    assert done.kept_when_full == (SLOT,)
    assert "group a has not finished at least 1" in done.warnings[0]


@pytest.mark.slow
def test_x25_latecomers_of_other_slots_are_not_looked_up(topic: Broker, clock: Clock) -> None:
    topic.send("t", b"in the slot", delay=DAY)
    pass_by(topic, clock)
    for group in GROUPS:
        consumer = topic.consumer("t", group)
        consumer.ack(consumer.receive(1))
    # The topic is released up to now: what is due before comes late.
    with connected(topic.dsn, autocommit=False) as slow:
        topic.send_many("t", [{"body": b"late", "delay": AT_ONCE}] * MANY, connection=slow)
        clock.advance(HOUR)
        topic.tick("t")
        slow.commit()
    topic.tick("t")
    with connected(topic.dsn) as connection:
        assert ask(connection, "select count(*) from duewheel.straggler") == [(MANY,)]
    is_needed, read = with_rows_read(topic, NEEDED, SLOT)
    assert (is_needed, read < 200) == (False, True)


def test_d09_a_lease_past_its_shorter_end_unseen_keeps_its_slot(topic: Broker, clock: Clock) -> None:
    """Its transaction commits after others have looked at the ends up to then: its first end counts."""
    topic.send_many("t", [{"body": b"x", "delay": DAY}] * 5)
    pass_by(topic, clock)
    for group in GROUPS[1:]:
        consumer = topic.consumer("t", group)
        consumer.ack(consumer.receive(10))
    consumer = topic.consumer("t", GROUPS[0])
    batch = consumer.receive(10, 5 * HOUR)
    with beside() as start, connected(topic.dsn, autocommit=False) as slow, connected(topic.dsn) as gate:
        ask(gate, STOP)
        ask(
            gate,
            "create constraint trigger zz after insert on duewheel.lease_extension"
            " deferrable initially deferred for each row execute function stop()",
        )
        ask(gate, "select pg_advisory_lock(1)")
        consumer.change_invisible_duration(batch, SECOND, connection=slow)
        committing = start(slow.commit)
        until(lambda: ask(gate, "select 1 from pg_locks where not granted"), "the commit to wait")
        clock.advance(MINUTE)
        topic.send("t", b"later", delay=AT_ONCE)
        assert len(consumer.receive(1, HOUR)) == 1
        ask(gate, "select pg_advisory_unlock(1)")
        committing.result()
    unread, _ = with_rows_read(topic, UNREAD, SLOT)
    assert unread == [{"topic": "t", "consumer_group": "a", "messages": 5, "at_least": False}]
    topic.update_settings(retention_bytes=1)
    assert topic.maintain().kept_when_full == (SLOT,)


@pytest.mark.slow
def test_x25_a_lease_over_several_slots_is_read_slot_by_slot(topic: Broker, clock: Clock) -> None:
    for days in (1, 2):
        topic.send_many("t", [{"body": b"x", "delay": days * DAY}] * 3_000)
    pass_by(topic, clock)
    for group in GROUPS:
        assert len(topic.consumer("t", group).receive(10_000, HOUR)) == 6_000
    for slot in (SLOT, "message_2026010700"):
        is_needed, read = with_rows_read(topic, NEEDED, slot)
        assert (is_needed, read < 100) == (True, True)
    unread, _ = with_rows_read(topic, UNREAD, SLOT)
    # Counted as far as a thousand.
    assert [(one["messages"], one["at_least"]) for one in unread] == [(1_000, True)] * 3


@pytest.mark.parametrize("answered", [0, 2])
def test_d09_a_lease_extended_twice_to_one_instant_counts_once(
    topic: Broker, clock: Clock, answered: int
) -> None:
    topic.send_many("t", [{"body": os.urandom(100_000), "delay": DAY}] * 5)
    pass_by(topic, clock)
    for group in GROUPS[1:]:
        consumer = topic.consumer("t", group)
        consumer.ack(consumer.receive(10))
    consumer = topic.consumer("t", GROUPS[0])
    batch = consumer.receive(10, HOUR)
    for _ in range(2):
        consumer.change_invisible_duration(batch, 5 * HOUR)
    if answered:
        consumer.ack(batch[:answered])
    unread, _ = with_rows_read(topic, UNREAD, SLOT)
    assert unread == [{"topic": "t", "consumer_group": "a", "messages": 5 - answered, "at_least": False}]


@pytest.mark.parametrize(("ahead", "outlives"), [(3 * DAY, False), (HOUR, True)])
def test_x25_a_slot_that_goes_reads_no_other_of_a_fifo_backlog(
    timed_broker: Broker, clock: Clock, ahead: timedelta, outlives: bool
) -> None:
    """Ten thousand messages of message groups that others hold wait in slots that stay, or outlive it."""
    timed_broker.create_topic("f", message_type="FIFO", queues=1)
    timed_broker.consumer("f", "g")
    timed_broker.maintain()
    with connected(timed_broker.dsn, autocommit=False) as connection:
        ask(
            connection,
            "insert into duewheel.fifo_backlog (place, deliver_at, seq, due_at, topic_id, group_id,"
            " source_topic_id, attempt, queue, source_queue, message_group)"
            " select 1, %s, n, 'infinity', s.topic_id, s.group_id, case n when 1 then s.retry_topic_id"
            " else s.topic_id end, 1, 0, 0, n::text"
            " from duewheel.subscription s, generate_series(1, 10000) n returning 1",
            clock() + ahead,
        )
        if outlives:
            ask(
                connection,
                "insert into duewheel.outlived_slot (starts_at, ends_at, table_name, topic_ids)"
                " select l.starts_at, l.ends_at, l.table_name, array[s.topic_id]"
                " from duewheel.slot l, duewheel.subscription s where l.table_name = %s returning 1",
                "message_2026010500",
            )
        slot = "(select s from duewheel.slot s where s.table_name = 'message_2026010500')"
        _, read = rows_read(connection, f"select duewheel.fifo_forget_slot({slot})")
        assert read < 100
        # The redriven message is not one of the topic.
        assert ask(connection, "select count(*) from duewheel.fifo_backlog") == [(10_000 - outlives,)]
