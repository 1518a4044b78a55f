"""A message made by hand is the message that a handler would get."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from duewheel.store import InvalidArgument, InvalidInstant, Message
from duewheel.testing import BrokerInTest, message

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)


def test_it_has_what_it_was_given() -> None:
    made = message(
        {"order": 1},
        topic="order-timeout",
        key="4711",
        tag="unpaid",
        properties={"region": "north"},
        message_group="customer-7",
        attempt=3,
        born_at=NOON,
        deliver_at=NOON + timedelta(minutes=30),
    )
    assert isinstance(made, Message)
    assert (made.topic, made.key, made.tag) == ("order-timeout", "4711", "unpaid")
    assert (made.json(), made.body) == ({"order": 1}, b'{"order":1}')
    assert made.value == {"order": 1}
    assert made.properties == {"region": "north", "content-type": "application/json"}
    assert made.message_group == "customer-7"
    assert (made.attempt, made.reconsume_times) == (3, 2)
    assert (made.born_at, made.deliver_at, made.asked_at) == (NOON, NOON + timedelta(minutes=30), None)
    assert made.expires_at > datetime.now(UTC)


def test_every_field_of_a_received_message_is_there(duewheel: BrokerInTest) -> None:
    duewheel.create_topic("t")
    duewheel.send("t", b"body", delay=timedelta(0))
    (received,) = duewheel.consumer("t", "g").receive()
    made = message(b"body", topic="t")
    fields = [name for name in dir(Message) if isinstance(getattr(Message, name), property)]
    assert {name: type(getattr(made, name)) for name in fields} == {
        name: type(getattr(received, name)) for name in fields
    }


def test_two_are_two() -> None:
    assert message().message_id != message().message_id


def test_the_answer_that_a_function_chooses_can_be_read() -> None:
    made = message()
    assert made.answer == "ack"
    made.skip("the order is paid")
    assert (made.answer, made.reason) == ("skip", "the order is paid")
    made.dead_letter()
    assert made.answer == "dead_letter"


def test_no_broker_takes_it(duewheel: BrokerInTest) -> None:
    duewheel.create_topic("t")
    with pytest.raises(InvalidArgument, match="a lease belongs to group number 0"):
        duewheel.consumer("t", "g").ack([message(topic="t")])


def test_what_a_broker_would_refuse_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="attempt"):
        message(attempt=0)
    with pytest.raises(InvalidArgument, match="key"):
        message(key=4711)  # type: ignore[arg-type]
    with pytest.raises(InvalidInstant):
        message(deliver_at=datetime(2026, 1, 5))  # noqa: DTZ001
