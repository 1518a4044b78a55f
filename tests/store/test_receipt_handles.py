"""Receipt handles: what names a received message in SQL."""

from __future__ import annotations

import psycopg2
import pytest
from tests.clock import Clock
from tests.waiting import ask, connected

from duewheel.store.broker import Broker


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
        with pytest.raises(psycopg2.Error, match="the lease is unknown"):
            ask(service, "select duewheel.ack(%s)", [largest])
