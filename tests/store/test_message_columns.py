"""A message keeps its columns wherever it goes, and each is known to everybody who lists them."""

from __future__ import annotations

from dataclasses import fields
from datetime import timedelta
from inspect import signature
from typing import Any

import pytest
from tests.clock import Clock
from tests.waiting import ask, connected

from duewheel.store import Broker
from duewheel.store.operations.copy_rows import COPY
from duewheel.store.values.messages import ROW_COLUMNS, Message, NewMessage
from duewheel.store.values.retry_policy import RetryPolicy
from duewheel.store.values.stored_messages import StoredMessage

HOUR = timedelta(hours=1)

#: Columns that the broker gives a message; a sender gives all others.
OF_THE_PLACE = {"topic_id", "queue", "deliver_at", "seq", "xid", "born_at", "asked_at"}
OF_THE_CHAIN = {"attempt", "reason", "origin_topic_id", "origin_queue", "origin_deliver_at", "origin_seq"}


def columns(broker: Broker, relation: str) -> set[str]:
    with connected(broker.dsn) as connection:
        return {
            name
            for (name,) in ask(
                connection,
                "select attname from pg_attribute"
                " where attrelid = %s::regclass and attnum > 0 and not attisdropped",
                f"duewheel.{relation}",
            )
        }


def given(broker: Broker) -> set[str]:
    """The columns of a message that its sender gives."""
    return columns(broker, "any_message") - OF_THE_PLACE - OF_THE_CHAIN


def parameters_of_send(broker: Broker) -> set[str]:
    with connected(broker.dsn) as connection:
        return set.intersection(
            *(
                set(names)
                for (names,) in ask(
                    connection,
                    "select proargnames from pg_proc where proname = 'send'"
                    " and pronamespace = 'duewheel'::regnamespace",
                )
            )
        )


@pytest.mark.parametrize(
    "place",
    [
        "far_message",
        "leased_message",
        "received_message",
        "described_message",
        "staged_message",
        "parameters of duewheel.send",
        "Broker.send",
        "NewMessage",
        "COPY",
        "ROW_COLUMNS",
        "Message",
        "StoredMessage",
    ],
)
def test_a_column_of_a_message_is_known_here(broker: Broker, place: str) -> None:
    match place:
        case "parameters of duewheel.send":
            known = parameters_of_send(broker)
        case "Broker.send":
            known = set(signature(Broker.send).parameters)
        case "NewMessage":
            known = {field.name for field in fields(NewMessage)}
        case "COPY":
            known = set(
                COPY.replace("(", ",").replace(")", ",").replace("\n", "").replace(" ", "").split(",")
            )
        case "ROW_COLUMNS":
            known = set(ROW_COLUMNS)
        case "Message":
            known = set(dir(Message))
        case "StoredMessage":
            known = {field.name for field in fields(StoredMessage)}
        case _:
            known = columns(broker, place)
    # A program in SQL receives by message group, and need not be told which.
    left_out = {"message_group"} if place == "received_message" else set()
    assert given(broker) - known - left_out == set(), f"{place} leaves these columns of a message out"


@pytest.fixture
def sent(timed_broker: Broker) -> tuple[Broker, dict[str, Any]]:
    """A broker with a message that has a value in every column its sender gives."""
    broker = timed_broker
    broker.create_topic("t")
    broker.consumer("t", "g", retry=RetryPolicy.unordered(max_retries=1))
    with connected(broker.dsn) as connection:
        types = dict(
            ask(
                connection,
                "select attname, format_type(atttypid, null) from pg_attribute"
                " where attrelid = 'duewheel.any_message'::regclass and attnum > 0",
            )
        )
    values = {"text": "one", "bytea": b"one", "jsonb": {"one": 1}}
    return broker, {name: values.get(types[name], 1) for name in given(broker)}


def kept(broker: Broker) -> dict[str, Any]:
    """The given columns of the newest message."""
    names = sorted(given(broker))
    with connected(broker.dsn) as connection:
        ((*values,),) = ask(
            connection, f"select {', '.join(names)} from duewheel.any_message order by seq desc limit 1"
        )
    return {
        name: bytes(value) if isinstance(value, memoryview) else value
        for name, value in zip(names, values, strict=True)
    }


def test_a_message_is_stored_with_all_that_was_given(sent: tuple[Broker, dict[str, Any]]) -> None:
    broker, values = sent
    broker.send("t", delay=HOUR, **values)
    assert kept(broker) == values
    broker.send_many("t", [{**values, "delay": HOUR}])
    assert kept(broker) == values


def test_a_message_that_is_moved_keeps_all_that_was_given(sent: tuple[Broker, dict[str, Any]]) -> None:
    broker, values = sent
    receipt = broker.send("t", delay=HOUR, **values)
    broker.reschedule(receipt.message_id, delay=2 * HOUR)
    assert kept(broker) == values


def test_a_message_that_is_sent_on_keeps_all_that_was_given(
    sent: tuple[Broker, dict[str, Any]], clock: Clock
) -> None:
    broker, values = sent
    broker.send("t", delay=HOUR, **values)
    consumer = broker.consumer("t", "g")
    for _ in range(2):
        clock.advance(HOUR)
        broker.tick("t")
        batch = consumer.receive()
        assert {name: getattr(batch[0], name) for name in values} == values
        consumer.nack(batch)
        assert kept(broker) == values
    assert broker.redrive("g").redriven == 1
    assert kept(broker) == values
