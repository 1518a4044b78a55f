"""Whoever follows a consumer of its name goes on with its messages, and the one before is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.acting import AT_ONCE, MICROSECOND, MINUTE, SECOND
from tests.store.test_keys import ROWS_READ
from tests.waiting import ask, connected

from duewheel.store.values.errors import LeaseLost

if TYPE_CHECKING:
    from tests.clock import Clock

    from duewheel.store import Broker, Consumer


@pytest.fixture
def orders(timed_broker: Broker) -> Broker:
    """A broker with five ready messages in several queues."""
    timed_broker.create_topic("orders", message_type="NORMAL")
    for number in range(5):
        timed_broker.send("orders", str(number))
    return timed_broker


def named(broker: Broker, name: str) -> Consumer:
    """A consumer of such a name."""
    return broker.consumer("orders", "g", name=name)


def test_x10_the_next_of_a_name_has_the_messages_of_the_last(orders: Broker, clock: Clock) -> None:
    before = named(orders, "task")
    held = before.receive(invisible=MINUTE)
    clock.advance(50 * SECOND)
    assert not orders.take_over(named(orders, "other"), MINUTE)
    after = named(orders, "task")
    taken = orders.take_over(after, MINUTE)
    assert sorted(message.body for message in taken) == sorted(message.body for message in held)
    assert {message.attempt for message in taken} == {1}
    with pytest.raises(LeaseLost):
        before.ack(held)
    with pytest.raises(LeaseLost):
        before.change_invisible_duration(held, MINUTE)
    # The lease lasts from then on; what has ended is received again, and not taken over.
    clock.advance(MINUTE - MICROSECOND)
    after.ack(taken[:2])
    clock.advance(MICROSECOND)
    assert not orders.take_over(named(orders, "task"), MINUTE)
    assert [message.attempt for message in after.receive()] == [2] * 3


def test_what_was_answered_before_is_not_taken_over(orders: Broker) -> None:
    before = named(orders, "task")
    held = before.receive()
    before.ack(held[:2])
    before.nack(held[2:3])
    taken = orders.take_over(named(orders, "task"), MINUTE)
    assert [message.message_id for message in taken] == [message.message_id for message in held[3:]]
    named(orders, "task").ack(taken)
    assert not orders.take_over(named(orders, "task"), MINUTE)


def test_retries_and_what_was_extended_are_taken_over(orders: Broker, clock: Clock) -> None:
    first = named(orders, "task")
    first.nack(first.receive(), delay=AT_ONCE)
    held = first.receive(invisible=MINUTE)
    first.change_invisible_duration(held, 10 * MINUTE)
    clock.advance(5 * MINUTE)
    taken = orders.take_over(named(orders, "task"), MINUTE)
    assert [message.attempt for message in taken] == [2] * 5


def test_messages_of_a_fifo_topic_are_taken_over_in_order(timed_broker: Broker) -> None:
    timed_broker.create_topic("orders", message_type="FIFO")
    for number in range(4):
        timed_broker.send("orders", str(number), message_group="one")
    held = named(timed_broker, "task").receive()
    taken = timed_broker.take_over(named(timed_broker, "task"), MINUTE)
    assert (
        [message.body for message in taken] == [message.body for message in held] == [b"0", b"1", b"2", b"3"]
    )
    named(timed_broker, "task").ack(taken)


def test_a_job_takes_over_the_rest_of_a_lease(orders: Broker) -> None:
    before = named(orders, "task")
    held = before.receive()
    before.nack(held[:2])
    leases = orders.take_over_leases(named(orders, "task"), MINUTE)
    assert sum(lease.count for lease in leases) == 3
    with pytest.raises(LeaseLost):
        before.ack(held[2:])
    named(orders, "task").ack(leases)
    assert not orders.take_over_leases(named(orders, "task"), MINUTE)


@pytest.mark.slow
@pytest.mark.parametrize("with_messages", [True, False])
def test_x25_leases_are_taken_over_in_portions(
    topic: Broker, monkeypatch: pytest.MonkeyPatch, with_messages: bool
) -> None:
    monkeypatch.setattr("duewheel.store.consuming.taking_over._PORTION", 3)
    topic.create_topic("many", message_type="NORMAL", queues=3)
    before = topic.consumer("many", "g", name="task")
    topic.send_many("many", [{"body": f"{number}"} for number in range(20)])
    held = [before.receive(1)[0].body for _ in range(9)]
    retried = before.receive(2)
    before.nack(retried, delay=AT_ONCE)
    held += [message.body for _ in range(2) for message in before.receive(1)]
    other = topic.consumer("many", "g", name="other").receive(1)
    after = topic.consumer("many", "g", name="task")
    if with_messages:
        taken = topic.take_over(after, MINUTE)
        assert sorted(message.body for message in taken) == sorted(held)
        after.ack(taken)
    else:
        leases = topic.take_over_leases(after, MINUTE)
        assert len(set(leases)) == len(held)
        after.ack(leases)
    assert not topic.take_over(after, MINUTE)
    topic.consumer("many", "g", name="other").ack(other)


@pytest.mark.owner
def test_x25_one_call_takes_over_a_bounded_number_of_leases(topic: Broker, clock: Clock) -> None:
    before = topic.consumer("t", "g", name="task")
    topic.send_many("t", [{"body": b"", "delay": AT_ONCE}] * 201)
    topic.tick("t")
    for _ in range(201):
        before.receive(1, MINUTE)
    take_over = "select count(*) from duewheel.take_over(%s, %s, 'task', '1 min', %s, false)"
    with connected(topic.dsn) as session:
        assert ask(session, take_over, before.group_id, before.topic_id, clock()) == [(200,)]


@pytest.mark.owner
def test_x25_one_plan_reads_all_leases(topic: Broker, clock: Clock) -> None:
    before = topic.consumer("t", "g", name="task")
    topic.send_many("t", [{"body": b"", "delay": AT_ONCE}] * 5)
    topic.tick("t")
    for _ in range(5):
        before.receive(1, MINUTE)
    take_over = "select count(seq), count(lease) from duewheel.take_over(%s, %s, 'task', '1 min', %s)"
    with connected(topic.dsn, autocommit=False) as session:
        ask(session, "set track_functions = 'all'; select 1")
        assert ask(session, take_over, before.group_id, before.topic_id, clock()) == [(5, 5)]
        # The text of a query is planned each time.
        assert not ask(session, "select 1 from pg_stat_xact_user_functions where funcname = 'lease_query'")


@pytest.mark.owner
def test_x25_each_lease_taken_over_costs_the_same(topic: Broker, clock: Clock) -> None:
    read = []
    for count in (20, 200):
        before = topic.consumer("t", str(count), name="task")
        topic.send_many("t", [{"body": b"", "delay": AT_ONCE}] * count)
        topic.tick("t")
        for _ in range(count):
            before.receive(1, MINUTE)
        take_over = "select count(*) from duewheel.take_over(%s, %s, 'task', '1 min', %s, false)"
        with connected(topic.dsn, autocommit=False) as session:
            ((at_first,),) = ask(session, ROWS_READ)
            assert ask(session, take_over, before.group_id, before.topic_id, clock()) == [(count,)]
            ((at_last,),) = ask(session, ROWS_READ)
        read.append(at_last - at_first)
    few, many = read
    assert many <= 11 * few, read
