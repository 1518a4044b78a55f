"""Dead letters by their reasons, and those that are discarded instead of being sent again."""

from __future__ import annotations

import pytest
from tests.acting import MINUTE
from tests.clock import NOW, Clock
from tests.waiting import ask, connected

from duewheel.store import RetryPolicy, UnknownGroup, UnknownTopic
from duewheel.store.broker import Broker
from duewheel.store.operations import dead_letter_pages
from duewheel.store.values.bulk_results import Discarded


@pytest.fixture
def dead(timed_broker: Broker, clock: Clock) -> Broker:
    """Dead letters of two reasons, one of which begins as the other."""
    for topic, reasons in (("a", ["HTTP 50", "HTTP 503", "HTTP 503"]), ("b", ["HTTP 503"])):
        timed_broker.create_topic(topic, message_type="NORMAL", queues=1)
        consumer = timed_broker.consumer(topic, "g", retry=RetryPolicy(0, (MINUTE,)))
        for reason in reasons:
            timed_broker.send(topic, b"", key=reason)
            consumer.nack(consumer.receive(), reason=reason)
            clock.advance(MINUTE)
    return timed_broker


def reasons(broker: Broker, topic: str | None = None) -> list[tuple[str | None, int]]:
    found, complete = dead_letter_pages.dead_letter_reasons(broker, "g", topic)
    assert complete
    return [(one.reason, one.messages) for one in found]


def test_x12_dead_letters_are_counted_by_reason(dead: Broker) -> None:
    (first, _), complete = dead_letter_pages.dead_letter_reasons(dead, "g")
    assert reasons(dead) == [("HTTP 503", 3), ("HTTP 50", 1)]
    assert reasons(dead, "b") == [("HTTP 503", 1)]
    assert (first.first_dead_at, first.last_dead_at) == (NOW + MINUTE, NOW + 3 * MINUTE)
    assert complete
    with pytest.raises(UnknownGroup):
        dead_letter_pages.dead_letter_reasons(dead, "nope")
    with pytest.raises(UnknownTopic):
        dead_letter_pages.dead_letter_reasons(dead, "g", "nope")
    # One is redriven, and the others stay.
    assert dead.redrive("g", reason="HTTP 50").redriven == 1
    assert reasons(dead) == [("HTTP 503", 3)]
    assert dead.redrive("g", reason="HTTP 5").redriven == 0


def test_x12_discarded_dead_letters_are_gone_but_in_history(dead: Broker) -> None:
    assert dead.discard_dead_letters("g", reason="HTTP 503", dry_run=True) == Discarded(3, 0)
    assert dead.discard_dead_letters("g", topic="a", reason="HTTP 503") == Discarded(2, 2)
    assert reasons(dead) == [("HTTP 50", 1), ("HTTP 503", 1)]
    assert [one.key for one in dead.dead_letters("g")] == ["HTTP 50", "HTTP 503"]
    assert [one.groups[0].dead for one in dead.stats().topics] == [1, 1]
    assert dead.discard_dead_letters("g", topic="a", reason="HTTP 503") == Discarded(0, 0)
    # Whoever redrives all of them sends the discarded ones no more.
    assert dead.redrive("g").redriven == 2
    gone = next(one for one in dead.list_messages("a", state="released").messages if one.key == "HTTP 503")
    assert [entry.state for entry in dead.history(gone.message_id)][-2:] == ["DLQ", "Deleted"]
    assert dead.history(gone.message_id)[-1].reason == "discarded as a dead letter"


def test_x12_reasons_are_of_open_dead_letters_at_both_ends(dead: Broker) -> None:
    def found(max_looked_at: int, max_open: int = 10) -> list[tuple[str | None, int, bool]]:
        with connected(dead.dsn) as connection:
            asked = """select reason, messages, complete from duewheel.dead_letter_reasons(
                           'g', 'a', max_looked_at => %s, max_open => %s)"""
            return ask(connection, asked, max_looked_at, max_open)

    everything = [("HTTP 503", 2, True), ("HTTP 50", 1, True)]
    assert found(10) == found(3) == found(2) == everything
    # The one between the two is not looked at; of the oldest two, one has each reason.
    assert found(1) == found(10, max_open=2) == [("HTTP 50", 1, False), ("HTTP 503", 1, False)]
    assert dead.redrive("g", topic="a", reason="HTTP 50").redriven == 1
    assert found(2) == [("HTTP 503", 2, True)]
    assert found(1) == [("HTTP 503", 1, False)]
    assert dead.discard_dead_letters("g", topic="a").discarded == 2
    assert found(3) == []
    assert found(1) == [(None, 0, False)]
