"""Databases in another encoding than UTF-8."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from tests.acting import AT_ONCE, HOUR
from tests.waiting import ask, connected

from duewheel.embedded.postgres import EmbeddedPostgres
from duewheel.store import Broker


@pytest.fixture(params=["LATIN1", "SQL_ASCII", "EUC_JP"])
def encoded(postgres: EmbeddedPostgres, request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A broker in a database of that encoding."""
    name = f"in_{request.param.lower()}"
    with connected(postgres.dsn()) as connection:
        ask(connection, f"create database {name} template template0 encoding '{request.param}' locale 'C'")
    with Broker(postgres.dsn(name)) as broker:
        broker.upgrade()
        yield broker
    with connected(postgres.dsn()) as connection:
        ask(connection, f"drop database {name} with (force)")


def test_messages_are_sent_chosen_and_received_in_every_encoding(encoded: Broker) -> None:
    encoded.create_topic("t")
    keys = ["shop-", "shop-7", "shop-7/1", "shop-7~", "shop-8/1", "sho"]
    for key in keys:
        encoded.send("t", b"", delay=HOUR, key=key)
    chosen = [message.key for message in encoded.list_messages("t", key_prefix="shop-7").messages]
    assert chosen == ["shop-7", "shop-7/1", "shop-7~"]
    assert encoded.recall_many("t", key_prefix="shop-7").recalled == 3
    left = [message.key for message in encoded.list_messages("t", key_prefix="sho").messages]
    assert left == ["sho", "shop-", "shop-8/1"]
    receipt = encoded.send(
        "t", "caf\u00e9 \u4e2d".encode(), delay=HOUR, key="a key", properties={"a": 1}, tag="x"
    )
    encoded.reschedule(receipt.message_id, delay=AT_ONCE)
    consumer = encoded.consumer("t", "g", tags="x", filter="$.a == 1")
    (message,) = consumer.receive(wait=timedelta(seconds=30))
    assert (message.body.decode(), message.key) == ("caf\u00e9 \u4e2d", "a key")
    consumer.ack(message)
    assert [entry.state for entry in encoded.history(message.message_id)][-1] == "Acked"
