"""A message made by hand, for the test of a function that handles one."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

from duewheel.operators.handed_message import HandedMessage
from duewheel.store.values.bodies import check_text, properties_to_json, to_bytes
from duewheel.store.values.content_types import with_content_type
from duewheel.store.values.errors import InvalidArgument
from duewheel.store.values.instants import Instant, to_microseconds
from duewheel.store.values.leases import Lease
from duewheel.store.values.messages import ROW_COLUMNS, Message

_numbers = count(1)

_INVISIBLE = timedelta(minutes=1)


def message(
    body: object = b"",
    *,
    topic: str = "topic",
    key: str | None = None,
    tag: str | None = None,
    properties: Mapping[str, Any] | None = None,
    message_group: str | None = None,
    attempt: int = 1,
    born_at: Instant | None = None,
    deliver_at: Instant | None = None,
) -> HandedMessage:
    """A message as a handler gets it, without a broker.

    It is the message that a function gets with ``one_by_one``, so it has ``skip`` and ``dead_letter``. Its
    ``answer`` is the answer that the function has chosen: ``ack``, ``skip`` or ``dead_letter``. A broker
    refuses it, because it has no real lease.

    Args:
        body: bytes, a str, or a JSON-able value, as in :meth:`Broker.send`.
        topic, key, tag, properties, message_group: as it would have been sent.
        attempt: which delivery it is, from 1.
        born_at: when it was sent; None is now.
        deliver_at: when it was due; None is when it was sent.

    Raises:
        InvalidArgument, BodyTooLarge, PropertiesTooLarge, InvalidInstant, NulInText: as in
            :meth:`Broker.send`.

    Example::

        def test_a_paid_order_is_left_alone(orders):
            orders.pay("4711")
            timeout = message({"order": "4711"}, key="4711")
            cancel(timeout)
            assert timeout.answer == "skip"
    """
    check_text(topic, "topic")
    check_text(key, "key", optional=True)
    check_text(tag, "tag", optional=True)
    check_text(message_group, "message_group", optional=True)
    if type(attempt) is not int or attempt < 1:
        raise InvalidArgument(f"attempt is {attempt!r}: give the number of the delivery, from 1")
    born_us = to_microseconds(datetime.now(UTC) if born_at is None else born_at, "born_at")
    due_us = born_us if deliver_at is None else to_microseconds(deliver_at, "deliver_at")
    number = next(_numbers)
    lease = Lease(
        group_id=0,
        topic_id=0,
        queue=0,
        n=number,
        token=0,
        expires_at=datetime.now(UTC) + _INVISIBLE,
        count=1,
    )
    columns = {
        "deliver_at": due_us,
        "seq": number,
        "body": to_bytes(body),
        "attempt": attempt,
        "tag": tag,
        "key": key,
        "properties": properties_to_json(with_content_type(body, properties)),
        "born_at": born_us,
        "message_group": message_group,
    }
    row = tuple(columns.get(name) for name in ROW_COLUMNS)
    return HandedMessage(Message(row, lease, topic))
