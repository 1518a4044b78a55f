"""A message keeps its columns wherever it goes, and each is known to everybody who lists them."""

from __future__ import annotations

import re
from dataclasses import fields
from inspect import signature
from typing import Any

import pytest
from tests.acting import HOUR, rows
from tests.clock import Clock

from duewheel.store import Broker
from duewheel.store.operations.copy_rows import COPY
from duewheel.store.operations.recalling import reschedule_portion
from duewheel.store.values.messages import ROW_COLUMNS, Message, NewMessage
from duewheel.store.values.retry_policy import RetryPolicy
from duewheel.store.values.stored_messages import StoredMessage

#: Columns that the broker gives a message; a sender gives all others.
OF_THE_PLACE = {"topic_id", "queue", "deliver_at", "seq", "xid", "born_at", "asked_at"}
OF_THE_CHAIN = {"attempt", "reason", "origin_topic_id", "origin_queue", "origin_deliver_at", "origin_seq"}
OF_THE_CHAIN |= {"previous_seq", "lease_n"}
#: A part of the properties, which is stored as a mark.
OF_THE_PROPERTIES = {"content_type"}


def columns(broker: Broker, relation: str) -> set[str]:
    asked = (
        "select attname from pg_attribute where attrelid = %s::regclass and attnum > 0 and not attisdropped"
    )
    return {name for (name,) in rows(broker, asked, f"duewheel.{relation}")}


def given(broker: Broker) -> set[str]:
    """The columns of a message that its sender gives."""
    return columns(broker, "any_message") - OF_THE_PLACE - OF_THE_CHAIN - OF_THE_PROPERTIES


def test_every_list_of_message_columns_has_all_columns(broker: Broker) -> None:
    of_send = (
        "select proargnames from pg_proc where proname = 'send' and pronamespace = 'duewheel'::regnamespace"
    )
    kinds = ("far", "leased", "received", "described", "staged")
    known = {
        **{f"{kind}_message": columns(broker, f"{kind}_message") for kind in kinds},
        "parameters of duewheel.send": set.intersection(*(set(names) for (names,) in rows(broker, of_send))),
        "Broker.send": set(signature(Broker.send).parameters),
        "NewMessage": {field.name for field in fields(NewMessage)},
        "COPY": set(re.findall(r"\w+", COPY)),
        "ROW_COLUMNS": set(ROW_COLUMNS),
        "Message": set(dir(Message)),
        "StoredMessage": {field.name for field in fields(StoredMessage)},
    }
    # A program in SQL receives by message group, and need not be told which.
    known["received_message"].add("message_group")
    assert {place: given(broker) - names for place, names in known.items() if given(broker) - names} == {}


@pytest.fixture
def sent(timed_broker: Broker) -> tuple[Broker, dict[str, Any]]:
    """A broker with a message that has a value in every column its sender gives."""
    broker = timed_broker
    broker.create_topic("t")
    broker.consumer("t", "g", retry=RetryPolicy.unordered(max_retries=1))
    types = dict(
        rows(
            broker,
            "select attname, format_type(atttypid, null) from pg_attribute"
            " where attrelid = 'duewheel.any_message'::regclass and attnum > 0",
        )
    )
    values = {"text": "one", "bytea": b"one", "jsonb": {"one": 1, "content-type": "application/json"}}
    return broker, {name: values.get(types[name], 1) for name in given(broker)}


def kept(broker: Broker) -> dict[str, Any]:
    """The given columns of the newest message."""
    names = sorted(given(broker))
    told = {"properties": "duewheel.all_properties(content_type, properties)"}
    listed = ", ".join(told.get(name, name) for name in names)
    newest = f"select content_type, {listed} from duewheel.any_message order by seq desc limit 1"
    ((mark, *values),) = rows(broker, newest)
    assert mark == "j"
    return {
        name: bytes(value) if isinstance(value, memoryview) else value
        for name, value in zip(names, values, strict=True)
    }


def test_a_message_keeps_all_that_was_given(sent: tuple[Broker, dict[str, Any]], clock: Clock) -> None:
    """When it is stored, moved alone and with others, retried, dead, and redriven."""
    broker, values = sent
    broker.send_many("t", [{**values, "delay": HOUR}])
    assert kept(broker) == values
    receipt = broker.send("t", delay=HOUR, **values)
    assert kept(broker) == values
    broker.reschedule(receipt.message_id, delay=2 * HOUR)
    assert kept(broker) == values
    late: dict[str, Any] = dict.fromkeys(("tag", "key_prefix", "due_until", "after")) | {
        "due_from": clock() + 2 * HOUR
    }
    assert reschedule_portion(broker, "t", deliver_at=clock() + 1.5 * HOUR, dry_run=False, **late)[1] == 1
    assert kept(broker) == values
    consumer = broker.consumer("t", "g")
    clock.advance(HOUR)
    consumer.ack(consumer.receive())
    for _ in range(2):
        clock.advance(HOUR)
        broker.tick("t")
        batch = consumer.receive()
        assert {name: getattr(batch[0], name) for name in values} == values
        consumer.nack(batch)
        assert kept(broker) == values
    assert broker.redrive("g").redriven == 1
    assert kept(broker) == values
