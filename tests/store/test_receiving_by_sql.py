"""Receiving with SQL alone: what chooses among the messages."""

from __future__ import annotations

import pytest
from tests.acting import MINUTE, SECOND, rows
from tests.clock import Clock

from duewheel.store.broker import Broker


@pytest.fixture
def orders(timed_broker: Broker, clock: Clock) -> Broker:
    """A topic of one queue with four messages that are due."""
    timed_broker.create_topic("t", queues=1)
    for body, tag, properties in (
        ("north 5", "a", {"region": "north", "amount": 5}),
        ("north 50", "a", {"region": "north", "amount": 50}),
        ("south 50", "b", {"region": "south", "amount": 50}),
        ("without", "b", None),
    ):
        timed_broker.send("t", body, tag=tag, properties=properties, delay=SECOND)
    clock.advance(2 * SECOND)
    return timed_broker


def received(broker: Broker, group: str = "g", **given: object) -> list[str]:
    broker.tick("t")
    names = "".join(f", {name} => %s" for name in given)
    asked = f"select convert_from(body, 'UTF8') from duewheel.receive('t', %s, now => %s{names})"
    return [body for (body,) in rows(broker, asked, group, broker.now(), *given.values())]


def test_d12_a_filter_chooses_by_the_properties(orders: Broker) -> None:
    for number, (given, expected) in enumerate(
        (
            ({}, ["north 5", "north 50", "south 50", "without"]),
            ({"filter": '$.region == "north"'}, ["north 5", "north 50"]),
            ({"filter": "$.amount > 10"}, ["north 50", "south 50"]),
            ({"filter": '$.region == "north" && $.amount > 10'}, ["north 50"]),
            ({"filter": "!exists($.region)"}, ["without"]),
            ({"filter": "$.amount > 10", "tags": "b"}, ["south 50"]),
            ({"filter": "$.amount > 10", "max_messages": 1}, ["north 50"]),
            ({"filter": "$.amount > 100"}, []),
        )
    ):
        orders.consumer("t", f"g{number}")
        assert received(orders, f"g{number}", **given) == expected, given
    # What was left out is not delivered later.
    assert received(orders, "g7") == []


def test_the_lease_knows_its_filter(orders: Broker, clock: Clock) -> None:
    """What is revived, or read through the lease, is what the filter chose."""
    orders.consumer("t", "g")
    received(orders, filter='$.region == "north"', max_messages=2)
    leases = "select group_id, topic_id, n from duewheel.lease where message_count > 0"
    ((group_id, topic_id, n),) = rows(orders, leases)
    chosen = rows(orders, "select body from duewheel.lease_rows(%s, %s, 0, %s)", group_id, topic_id, n)
    assert [bytes(body) for (body,) in chosen] == [b"north 5", b"north 50"]
    clock.advance(2 * MINUTE)
    # Retries are not chosen among again.
    assert sorted(received(orders, filter='$.region == "south"')) == ["north 5", "north 50", "south 50"]


def test_jobs_lease_by_a_filter_too(orders: Broker, clock: Clock) -> None:
    consumer = orders.consumer("t", "g")
    orders.tick("t")
    leases = "select lease_count from duewheel.lease_evenly(%s, %s, null, 100, 1, '1 minute', 'job', %s, %s)"
    chosen = rows(orders, leases, consumer.group_id, consumer.topic_id, clock(), "$.amount == 50")
    assert chosen == [(2,)]
