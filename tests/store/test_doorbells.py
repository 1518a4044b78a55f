"""What a group could receive now, as doorbells say it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.acting import AT_ONCE, HOUR, MINUTE, SECOND
from tests.clock import Clock
from tests.store.test_keys import rows_read
from tests.waiting import ask, connected

from duewheel.store import Broker, MessageType


def test_10_000_ready_messages_leave_other_queues_countable(broker: Broker) -> None:
    broker.create_topic("t", queues=2)
    broker.consumer("t", "g")

    def messages(count: int, group: str) -> list[dict[str, object]]:
        return [{"body": b"", "delay": AT_ONCE, "message_group": group} for _ in range(count)]

    # The names lead to both queues.
    both = [f"group-{number}" for number in range(4)]
    with connected(broker.dsn, autocommit=False) as late:
        for name in both:
            broker.send_many("t", messages(30, name), connection=late)
            broker.send_many("t", messages(10_000, name))
        broker.tick("t")
        late.commit()
    broker.tick("t")
    (bell,) = broker.doorbells(["t"], ["g"])
    assert bell.ready == 10_000
    assert bell.oldest_deliver_at is not None


@pytest.mark.parametrize("message_type", ["NORMAL", "FIFO"])
def test_others_lie_behind_ten_thousand_only_where_they_do(broker: Broker, message_type: MessageType) -> None:
    broker.create_topic("t", queues=2, message_type=message_type)
    broker.consumer("t", "g")
    broker.send_many("t", [{"body": b"", "message_group": "one"}] * 10_000)
    for more in (False, True):
        (bell,) = broker.doorbells(["t"], ["g"])
        assert (bell.ready, bell.more) == (10_000, more), "the other queue is empty"
        broker.send("t", b"", message_group="one")


def test_a_look_at_all_late_messages_leaves_none_behind(timed_broker: Broker, clock: Clock) -> None:
    broker = timed_broker
    broker.create_topic("t", queues=1)
    broker.consumer("t", "g", "mine")
    with connected(broker.dsn, autocommit=False) as late:
        broker.send_many("t", [{"body": b"", "tag": "late", "delay": MINUTE}] * 5_500, connection=late)
        broker.send_many("t", [{"body": b"", "tag": "in-time", "delay": MINUTE}] * 5_500)
        broker.send("t", b"", tag="mine", delay=MINUTE)
        clock.advance(2 * MINUTE)
        broker.tick("t")
        late.commit()
    (bell,) = broker.doorbells(["t"], ["g"])
    assert (bell.ready, bell.more) == (1, False)
    assert not bell.has(2)


@pytest.mark.owner
def test_x25_a_look_passes_a_portion_of_unreleased_messages(timed_broker: Broker, clock: Clock) -> None:
    """Where it ends among them, others lie behind."""
    broker = timed_broker
    broker.create_topic("t", queues=1)
    broker.consumer("t", "g")
    with connected(broker.dsn, autocommit=False) as late:
        for _ in range(2):
            broker.send_many("t", [{"body": b"", "delay": MINUTE}] * 9_500, connection=late)
        broker.send("t", b"", delay=MINUTE)
        clock.advance(2 * MINUTE)
        broker.tick("t")
        late.commit()
    unread = (
        "select (c.wanted, c.unread)::text from duewheel.subscription s,"
        " duewheel.count_unread(s.group_id, s.topic_id, 0::smallint, %s) c"
    )
    with connected(broker.dsn, autocommit=False) as session:
        # The first look of a session plans.
        for _ in range(2):
            found, read = rows_read(session, unread, 10)
        # Each with its tick.
        assert (found, read < 21_000) == ("(0,11)", True)
        assert rows_read(session, unread, 10_000)[0] == "(1,1)"
    (bell,) = broker.doorbells(["t"], ["g"])
    assert (bell.ready, bell.more) == (10_000, False)


def test_a_message_behind_ten_thousand_does_not_count_with_them(broker: Broker) -> None:
    broker.create_topic("t", queues=1)
    broker.consumer("t", "g", "mine")
    broker.send_many("t", [{"body": b"", "tag": "others", "delay": AT_ONCE}] * 10_000)
    broker.tick("t")
    broker.send("t", b"", tag="mine", delay=AT_ONCE)
    (bell,) = broker.doorbells(["t"], ["g"])
    assert (bell.ready, bell.oldest_deliver_at, bell.more) == (1, None, True)
    assert not bell.has(2)


@pytest.mark.slow
def test_a_fifo_doorbell_costs_the_same_with_many_message_groups(broker: Broker) -> None:
    broker.create_topic("t", queues=16, message_type="FIFO")
    consumer = broker.consumer("t", "g")
    broker.send_many("t", [{"body": b"", "message_group": str(number)} for number in range(32_000)])
    broker.tick("t")
    for _ in range(16):
        assert consumer.receive(1)
    with connected(broker.dsn, autocommit=False) as session:
        ((ready,),) = ask(session, "select ready from duewheel.group_doorbells('{t}', '{g}')")
        ((look_ups,),) = ask(
            session, "select idx_scan from pg_stat_xact_user_tables where relname = 'lease_message'"
        )
    assert ready == 10_000
    # At most 100 message groups of each queue.
    assert look_ups < 16 * 250


@pytest.mark.slow
def test_a_fifo_doorbell_looks_up_few_failed_message_groups(timed_broker: Broker, clock: Clock) -> None:
    timed_broker.create_topic("t", queues=1, message_type="FIFO")
    consumer = timed_broker.consumer("t", "g")
    timed_broker.send_many("t", [{"body": b"", "message_group": str(number)} for number in range(4_000)])
    clock.advance(SECOND)
    timed_broker.tick("t")
    consumer.nack(consumer.receive(3_000))
    look_ups = (
        "select sum(idx_scan) from pg_stat_xact_user_tables"
        " where relname in"
        " ('lease_message', 'fifo_backlog', 'lease_event', 'lease_extension', 'lease_answer')"
    )
    doorbells = "select ready from duewheel.group_doorbells('{t}', '{g}', p_now => %s)"
    for wait, expected in ((AT_ONCE, 1_000), (MINUTE, 4_000)):
        with connected(timed_broker.dsn, autocommit=False) as session:
            ((ready,),) = ask(session, doorbells, clock() + wait)
            ((count,),) = ask(session, look_ups)
        assert ready == expected
        assert count < 1_500


def test_a_fifo_doorbell_rings_behind_10_000_blocked_messages(broker: Broker) -> None:
    broker.create_topic("t", queues=1, message_type="FIFO")
    broker.send("t", b"", message_group="held")
    consumer = broker.consumer("t", "g")
    assert consumer.receive(1)
    broker.send_many("t", [{"body": b"", "message_group": "held"}] * 10_000)
    (bell,) = broker.doorbells(["t"], ["g"])
    assert (bell.ready, bell.more) == (0, False)
    broker.send("t", b"free", message_group="free")
    (bell,) = broker.doorbells(["t"], ["g"])
    assert (bell.ready, bell.more) == (1, True)
    assert [message.body for message in consumer.receive(1)] == [b"free"]


UNANSWERED = "explain (analyze, format json) select * from duewheel.unanswered_leases(%s, %s, 0, %s)"


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", ()):
        yield from nodes(part)


@pytest.mark.owner
def test_x25_unanswered_leases_are_found_in_one_scan(topic: Broker, clock: Clock) -> None:
    consumer = topic.consumer("t", "g")
    topic.send_many("t", [{"body": b"", "delay": AT_ONCE}] * 60)
    leased = [consumer.receive(1, HOUR) for _ in range(60)]
    for batch in leased[:50]:
        consumer.ack(batch)
    consumer.change_invisible_duration(leased[50], 2 * HOUR)
    with connected(topic.dsn) as session:
        ((explained,),) = ask(session, UNANSWERED, consumer.group_id, consumer.topic_id, clock())
    plan = explained[0]["Plan"]
    assert plan["Actual Rows"] == 10
    assert {"lease_expiry", "lease_event_pkey"} <= {node.get("Index Name") for node in nodes(plan)}
    assert [node["Node Type"] for node in nodes(plan) if node["Actual Loops"] > 1] == []


@pytest.mark.owner
def test_x25_open_leases_are_read_up_to_a_limit(timed_broker: Broker, clock: Clock) -> None:
    timed_broker.create_topic("t", queues=4)
    consumer = timed_broker.consumer("t", "g")
    timed_broker.send_many("t", [{"body": b"", "delay": AT_ONCE}] * 40)
    for _ in range(40):
        consumer.receive(1, HOUR)
    with connected(timed_broker.dsn) as session:
        for limit, count in ((0, 0), (1, 1), (35, 35), (41, 40), (None, 40)):
            open_leases = "select count(*) from duewheel.open_leases(%s, %s, %s, %s)"
            assert ask(session, open_leases, consumer.group_id, consumer.topic_id, clock(), limit) == [
                (count,)
            ]
