"""Receiving with SQL alone: what chooses among the messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any

import psycopg2
import pytest
from tests.acting import SECOND
from tests.clock import Clock

from duewheel.store.broker import Broker

Ask = Callable[..., list[tuple[Any, ...]]]


@pytest.fixture
def ask(dsn: str) -> Iterator[Ask]:
    """Runs one statement on a connection of its own and returns its rows."""
    with closing(psycopg2.connect(dsn)) as connection:
        connection.autocommit = True

        def run(statement: str, *parameters: object) -> list[tuple[Any, ...]]:
            with connection.cursor() as cursor:
                cursor.execute(statement, parameters or None)
                return cursor.fetchall()

        yield run


@pytest.fixture
def orders(timed_broker: Broker, clock: Clock) -> Broker:
    """A topic of one queue with four messages that are due."""
    timed_broker.create_topic("t", queues=1)
    timed_broker.send_many(
        "t",
        [
            {"body": "north 5", "tag": "a", "properties": {"region": "north", "amount": 5}, "delay": SECOND},
            {
                "body": "north 50",
                "tag": "a",
                "properties": {"region": "north", "amount": 50},
                "delay": SECOND,
            },
            {
                "body": "south 50",
                "tag": "b",
                "properties": {"region": "south", "amount": 50},
                "delay": SECOND,
            },
            {"body": "without", "tag": "b", "delay": SECOND},
        ],
    )
    clock.advance(2 * SECOND)
    return timed_broker


def received(ask: Ask, clock: Clock, **given: object) -> list[str]:
    names = "".join(f", {name} => %s" for name in given)
    ask("call duewheel.tick('t', %s)", clock())
    rows = ask(
        f"select convert_from(body, 'UTF8') from duewheel.receive('t', 'g', now => %s{names})",
        clock(),
        *given.values(),
    )
    return [body for (body,) in rows]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ["north 5", "north 50", "south 50", "without"]),
        ({"filter": '$.region == "north"'}, ["north 5", "north 50"]),
        ({"filter": "$.amount > 10"}, ["north 50", "south 50"]),
        ({"filter": '$.region == "north" && $.amount > 10'}, ["north 50"]),
        ({"filter": "!exists($.region)"}, ["without"]),
        ({"filter": "$.amount > 10", "tags": "b"}, ["south 50"]),
        ({"filter": "$.amount > 10", "max_messages": 1}, ["north 50"]),
        ({"filter": "$.amount > 100"}, []),
    ],
)
def test_d12_a_filter_chooses_by_the_properties(
    orders: Broker, ask: Ask, clock: Clock, given: dict[str, object], expected: list[str]
) -> None:
    assert received(ask, clock, **given) == expected


def test_what_a_filter_leaves_out_is_not_delivered_later(orders: Broker, ask: Ask, clock: Clock) -> None:
    assert received(ask, clock, filter="$.amount > 100") == []
    assert received(ask, clock) == []


def test_the_lease_knows_its_filter(orders: Broker, ask: Ask, clock: Clock) -> None:
    """What is revived, or read through the lease, is what the filter chose."""
    received(ask, clock, filter='$.region == "north"', max_messages=2)
    ((group_id, topic_id, n),) = ask(
        "select group_id, topic_id, n from duewheel.lease where message_count > 0"
    )
    rows = ask("select body from duewheel.lease_rows(%s, %s, 0, %s)", group_id, topic_id, n)
    assert [bytes(body) for (body,) in rows] == [b"north 5", b"north 50"]
    clock.advance(timedelta(minutes=2))
    # Retries are not chosen among again.
    assert sorted(received(ask, clock, filter='$.region == "south"')) == ["north 5", "north 50", "south 50"]


def test_jobs_lease_by_a_filter_too(orders: Broker, ask: Ask, clock: Clock) -> None:
    consumer = orders.consumer("t", "g")
    orders.tick("t")
    rows = ask(
        "select lease_count from duewheel.lease_evenly("
        "%s, %s, null, 100, 1, '1 minute', 'job', %s, '$.amount == 50')",
        consumer.group_id,
        consumer.topic_id,
        clock(),
    )
    assert rows == [(2,)]
