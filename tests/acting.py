"""Common actions of tests: send, take everything, run SQL, run a command, tell a state."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tests.waiting import ask

if TYPE_CHECKING:
    from duewheel.store.broker import Broker
    from duewheel.store.consuming.consumer import Consumer
    from duewheel.store.values.messages import Message

MICROSECOND = timedelta(microseconds=1)
MILLISECOND = timedelta(milliseconds=1)
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
#: The delay of a message that is due when it is sent.
AT_ONCE = timedelta(0)

#: Runs the command line with these arguments and ``--json``, and returns the document it wrote.
Command = Callable[..., Any]

#: Lets a tick stand in a transaction that does other things, too, and is rolled back.
TICKS_ANYWHERE = """
create or replace function duewheel.require_own_transaction() returns void
language plpgsql as $$ begin perform duewheel.require_read_committed(); end $$
"""


def send(broker: Broker, *texts: str, topic: str = "t", **fields: Any) -> None:
    """Sends a message with each text, all in one transaction; due at once unless ``fields`` say otherwise."""
    broker.send_many(topic, [{"body": text, "delay": AT_ONCE, **fields} for text in texts])


def send_numbered(broker: Broker, count: int) -> None:
    """Sends messages 0, 1, ... to the NORMAL or FIFO topic ``t``, each in a message group of its own."""
    broker.send_many("t", [{"body": b"%d" % n, "message_group": f"{n}"} for n in range(count)])


def bodies(messages: Iterable[Message]) -> list[bytes]:
    """The received messages, in order."""
    return [message.body for message in messages]


def taken(consumer: Consumer) -> list[Message]:
    """All that is ready now, acked."""
    everything: list[Message] = []
    while batch := consumer.receive(1_000):
        consumer.ack(batch)
        everything += batch
    return everything


def rows(broker: Broker, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
    """The rows of one statement, as any program with a connection would run it."""
    with broker.connection() as connection:
        return ask(connection, statement, *parameters)


def wait_briefly(broker: Broker) -> None:
    """Lets calls that wait for the transactions of others give up after a second instead of ten."""
    waits = r"'(00:00:10|10 seconds)'"
    defined = rows(
        broker,
        "select pg_get_functiondef(oid) from pg_proc where pronamespace = 'duewheel'::regnamespace"
        " and prokind = 'f' and pg_get_functiondef(oid) ~ %s",
        waits,
    )
    assert defined
    for (function,) in defined:
        rows(broker, re.sub(waits, "'1 second'", function))


def states(broker: Broker, message_id: str, group: str | None = None) -> list[str]:
    """The states a message went through: its own, before any group has it, and those of one group."""
    return [entry.state for entry in broker.history(message_id) if entry.consumer_group in (None, group)]


def state(broker: Broker, message_id: str, group: str | None = None) -> str:
    """The state a message is in now, for a group."""
    return states(broker, message_id, group)[-1]
