"""docs/how-to/operate.md answers what an administrator asks, and its answers are tried here."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from tests.acting import HOUR, bodies, rows
from tests.clock import Clock
from tests.pages import examples
from tests.waiting import ask, connected

from duewheel.store import Broker, RetryPolicy

PAGE = (Path(__file__).parent.parent / "docs" / "how-to" / "operate.md").read_text(encoding="utf-8")
NOW = timedelta(0)


def sql(begins: str) -> str:
    """The page's example of SQL that begins so."""
    (found,) = (block for block in examples(PAGE, "sql") if block.startswith(begins))
    return found


@pytest.mark.owner
def test_a_body_is_erased_wherever_the_message_went(timed_broker: Broker, clock: Clock) -> None:
    broker, secret = timed_broker, b"the address of a customer"
    broker.create_topic("t", queues=1, max_delay=timedelta(days=400))
    # Slots of these days.
    rows(broker, "select duewheel.make_slots_ahead(%s)", clock())
    for _ in range(2):
        rows(broker, "select duewheel.open_slots()")

    def send(**when: timedelta) -> str:
        return broker.send("t", secret, properties={"name": secret.decode()}, **when).message_id

    waits, far, moved, released = (
        send(delay=HOUR),
        send(delay=timedelta(days=300)),
        send(delay=HOUR),
        send(delay=NOW),
    )
    moved_to = broker.reschedule(moved, delay=timedelta(days=200)).message_id
    broker.recall(waits)
    group = broker.consumer("t", "g", retry=RetryPolicy.unordered(max_retries=1))
    for _ in range(2):
        (message,) = group.receive()
        assert message.message_id == released
        group.nack(message, reason="no")
        clock.advance(HOUR)
    assert broker.redrive("g").redriven == 1
    other = broker.send("t", b"of another", delay=NOW)

    with connected(broker.dsn) as connection:
        for message_id in (waits, far, moved_to, released):
            ask(connection, sql("with asked").replace("MESSAGE_ID", message_id))
        for table in ("duewheel.message", "duewheel.far_message"):
            kept = ask(connection, f"select body, properties from {table} where body <> %s", b"")
            assert {(bytes(body), named) for body, named in kept} <= {(b"of another", None)}
            assert ask(connection, f"select 1 from {table} where body = %s", b"")
    batch = group.receive()
    assert sorted(bodies(batch)) == [b"", b"of another"]
    assert {message.message_id for message in batch} == {released, other.message_id}
    group.ack(batch)
