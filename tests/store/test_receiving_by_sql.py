"""Receiving and answering with SQL alone: filters, receipt handles, reasons of many messages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import psycopg2
import pytest
from tests.acting import MINUTE, SECOND, rows
from tests.clock import Clock
from tests.waiting import ask, connected

from duewheel.store.broker import Broker
from duewheel.store.consuming.consumer import Consumer
from duewheel.store.values.errors import LeaseLost
from duewheel.store.values.messages import Batch, leases_of
from duewheel.store.values.retry_policy import RetryPolicy


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
    for number, (given, most, expected) in enumerate(
        (
            ({}, 9, ["north 5", "north 50", "south 50", "without"]),
            ({"filter": '$.region == "north"'}, 9, ["north 5", "north 50"]),
            ({"filter": "$.amount > 10"}, 9, ["north 50", "south 50"]),
            ({"filter": '$.region == "north" && $.amount > 10'}, 9, ["north 50"]),
            ({"filter": "!exists($.region)"}, 9, ["without"]),
            ({"filter": "$.amount > 10", "tags": "b"}, 9, ["south 50"]),
            ({"filter": "$.amount > 10"}, 1, ["north 50"]),
            ({"filter": "$.amount > 100"}, 9, []),
        )
    ):
        orders.consumer("t", f"g{number}", given.get("tags"), filter=given.get("filter"))
        assert received(orders, f"g{number}", max_messages=most) == expected, given
    # What was left out is not delivered later.
    assert received(orders, "g7") == []


def test_the_lease_knows_its_filter(orders: Broker, clock: Clock) -> None:
    """What is revived, or read through the lease, is what the filter chose."""
    orders.consumer("t", "g", filter='$.region == "north"')
    received(orders, max_messages=2)
    leases = "select group_id, topic_id, n from duewheel.lease where message_count > 0"
    ((group_id, topic_id, n),) = rows(orders, leases)
    chosen = rows(orders, "select body from duewheel.lease_rows(%s, %s, 0, %s)", group_id, topic_id, n)
    assert [bytes(body) for (body,) in chosen] == [b"north 5", b"north 50"]
    clock.advance(2 * MINUTE)
    # Retries are not chosen among again.
    orders.set_subscription("t", "g", filter='$.region == "south"')
    assert sorted(received(orders)) == ["north 5", "north 50", "south 50"]


def test_jobs_lease_by_a_filter_too(orders: Broker, clock: Clock) -> None:
    consumer = orders.consumer("t", "g", filter="$.amount == 50")
    orders.tick("t")
    leases = "select lease_count from duewheel.lease_evenly(%s, %s, 100, 1, '1 minute', 'job', %s)"
    chosen = rows(orders, leases, consumer.group_id, consumer.topic_id, clock())
    assert chosen == [(2,)]


@pytest.fixture
def topic(timed_broker: Broker) -> Broker:
    """A topic ``t``; the clock stands."""
    timed_broker.create_topic("t", message_type="NORMAL")
    return timed_broker


def test_a_handle_with_numbers_that_are_too_large_is_none(topic: Broker) -> None:
    with connected(topic.dsn) as service:
        for handle in (
            "1.1.0.1.1.9223372036854775808",
            "1.1.0.1.9223372036854775808.1",
            "1.1.0.9223372036854775808.1.1",
            "1.1.32768.1.1.1",
            "1.2147483648.0.1.1.1",
            "2147483648.1.0.1.1.1",
            "1.1.0.1.1",
            "1.1.0.1.1.-1",
            "",
        ):
            with pytest.raises(psycopg2.Error, match="is not a receipt handle") as refused:
                ask(service, "select duewheel.ack(%s)", [handle])
            assert refused.value.pgcode == "DW010"


@pytest.mark.owner
def test_a_handle_may_hold_the_largest_numbers(topic: Broker, clock: Clock) -> None:
    with connected(topic.dsn) as service:
        ask(service, "alter sequence duewheel.message_block maxvalue 140737488355327")
        ask(service, "select setval('duewheel.message_block', 140737488350000)")
        topic.send("t", b"")
        topic.tick("t")
        rows = ask(service, "select receipt_handle from duewheel.receive('t', 'g', now => %s)", clock())
        ((handle,),) = rows
        assert len(handle.split(".")[-1]) == 19
        ask(service, "select duewheel.ack(%s, %s)", [handle], clock())
        largest = "2147483647.2147483647.32767" + 3 * ".9223372036854775807"
        with pytest.raises(psycopg2.Error, match="does not know lease"):
            ask(service, "select duewheel.ack(%s)", [largest])


TOPIC = "orders"
COUNT = 500
REJECT = (
    "select duewheel.answer('nack', %s, array[%s], array[%s], array[%s::bigint], array[%s::bigint],"
    " %s::jsonb, interval '0', p_reasons => %s::jsonb)"
)
FETCHED = "select sum(idx_tup_fetch) from pg_stat_xact_user_tables where relname like 'message%'"


@pytest.fixture
def consumer(broker: Broker) -> Consumer:
    """A group that gives up after one retry, and has messages in one queue."""
    broker.create_topic(TOPIC, queues=1)
    messages = [{"body": b"", "key": str(key), "delay": timedelta(0)} for key in range(COUNT)]
    broker.send_many(TOPIC, messages)
    return broker.consumer(TOPIC, "group", retry=RetryPolicy(1, (timedelta(seconds=1),)))


def seqs(batch: Batch) -> list[int]:
    (lease,) = leases_of(batch)
    return list(lease.seqs or ())


def reject(broker: Broker, batch: Batch, reasons: Sequence[str | None], numbers: Sequence[int]) -> int:
    """Rejects messages of a lease; how many messages were read for it."""
    (lease,) = leases_of(batch)
    parameters: tuple[Any, ...] = (lease.group_id, lease.topic_id, lease.queue, lease.n, lease.token)
    with broker.connection() as connection, connection.cursor() as cursor:
        cursor.execute("begin")
        # What fails leaves it open, and the pool rolls back.
        cursor.execute(REJECT, (*parameters, json.dumps([numbers]), json.dumps([reasons])))
        cursor.execute(FETCHED)
        ((fetched,),) = cursor.fetchall()
        cursor.execute("commit")
    return int(fetched)


def test_r03_r14_each_reason_is_kept_and_costs_what_a_few_do(broker: Broker, consumer: Consumer) -> None:
    batch = consumer.receive(COUNT)
    numbers = seqs(batch)
    few = reject(broker, batch, [f"reason {place % 3}" for place in range(100)], numbers[:100])
    many = reject(broker, batch, [f"reason {place}" for place in range(100, 300)], numbers[100:300])
    assert many < 2 * few
    # Again, and beside others: those that are rejected stay so. One has no reason.
    rest = [None, *(f"reason {place}" for place in range(1, COUNT))]
    reject(broker, batch, rest[50:], numbers[50:])
    reject(broker, batch, rest[:100], numbers[:100])
    with pytest.raises(LeaseLost):
        consumer.ack(batch)

    again = consumer.receive(COUNT)
    assert sorted(int(message.key or "") for message in again) == list(range(COUNT))
    assert {message.attempt for message in again} == {2}
    reasons = [f"dead {message.key}" for message in again]
    reject(broker, again, reasons, seqs(again))
    letters = broker.dead_letters("group", max_messages=COUNT)
    assert sorted(letter.reason or "" for letter in letters) == sorted(reasons)
    first = next(letter for letter in letters if letter.reason == "dead 250")
    assert [entry.reason for entry in broker.history(first.message_id) if entry.reason] == [
        "reason 250",
        "dead 250",
    ]


def test_x10_one_acked_message_among_many_is_refused(broker: Broker, consumer: Consumer) -> None:
    batch = consumer.receive(10)
    consumer.ack(batch[5])
    with pytest.raises(Exception, match="answered before"):
        reject(broker, batch, [str(place) for place in range(10)], seqs(batch))
    consumer.ack([message for message in batch if message is not batch[5]])
    assert len(consumer.receive(COUNT)) == COUNT - 10
