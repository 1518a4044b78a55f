"""Statements prepared once per connection, and not at all where sessions are shared."""

from __future__ import annotations

from datetime import timedelta

import pytest

from duewheel.store import Broker

PREPARED = "select count(*) from pg_prepared_statements where name like 'duewheel%'"


@pytest.mark.parametrize(("listen", "prepared"), [(True, 3), (False, 0)])
def test_hot_statements_are_prepared_once_except_behind_a_pooler(
    dsn: str, listen: bool, prepared: int
) -> None:
    with Broker(dsn, listen=listen) as broker:
        broker.create_topic("orders")
        consumer = broker.consumer("orders", "billing")
        for body in (b"a", b"b", b"c"):
            broker.send("orders", body, delay=timedelta(0))
            (message,) = consumer.receive()
            assert message.body == body
            consumer.ack(message)
        with broker.connection() as connection, connection.cursor() as cursor:
            cursor.execute(PREPARED)
            assert cursor.fetchall() == [(prepared,)]


@pytest.mark.owner
def test_prepared_statements_outlive_an_upgrade(broker: Broker) -> None:
    broker.create_topic("orders")
    broker.send("orders", b"before", delay=timedelta(0))
    broker.upgrade()
    broker.send("orders", b"after", delay=timedelta(0))
    assert sorted(message.body for message in broker.consumer("orders", "billing").receive()) == [
        b"after",
        b"before",
    ]
