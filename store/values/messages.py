"""The values that callers meet: messages to send, received messages, receipts and answers.

Incoming messages are windows onto the rows the driver delivered: a batch of a thousand must cost next to
nothing until its messages are looked at. So instants, ids and properties are made from the row when they are
asked for.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import islice
from struct import Struct
from typing import Any, TypeVar, overload

from duewheel.store.values.content_types import CONTENT_TYPE, JSON_ALONE, json_of, value_of
from duewheel.store.values.errors import InvalidArgument
from duewheel.store.values.instants import Instant, from_microseconds
from duewheel.store.values.leases import Lease


class MessageType(StrEnum):
    """The kind of messages a topic takes; it cannot change."""

    NORMAL = "NORMAL"
    """Messages without a delay."""
    DELAY = "DELAY"
    """Messages with a delay or a delivery instant."""
    FIFO = "FIFO"
    """Messages without a delay that are consumed in the order of sending within their message group."""


class OutOfRange(StrEnum):
    """A topic's treatment of a delay over its maximum."""

    REJECT = "reject"
    """Refuse it with DelayOutOfRange."""
    DELIVER = "deliver"
    """Deliver it at once, as RocketMQ documents."""


class ConsumeMode(StrEnum):
    """How the consumers of a group share its messages; the mode is the same for the whole group."""

    CLUSTERING = "clustering"
    """Each message is delivered to one consumer; failed messages are retried."""
    BROADCASTING = "broadcasting"
    """Each message is delivered to every consumer; failed messages are skipped."""


class OnConflict(StrEnum):
    """The treatment of a waiting message of the topic that has the same key."""

    ALLOW = "allow"
    """Send the new message as well."""
    KEEP = "keep"
    """Keep the waiting message."""
    REPLACE = "replace"
    """Recall the waiting message and send the new one, in one step."""


class RecallOutcome(StrEnum):
    """The true answer of a recall."""

    RECALLED = "recalled"
    """The message is never delivered."""
    ALREADY_RELEASED = "already_released"
    """Too late: consumers have received the message, or may at any moment."""
    REPLACED = "replaced"
    """The message is never delivered: a send with ``on_conflict="replace"`` replaced it."""
    NOT_FOUND = "not_found"
    """No such message exists: it was never sent, or is past retention."""


class AnswerOutcome(StrEnum):
    """The true reply to an answer."""

    ANSWERED = "answered"
    """The run that waits continues with this answer."""
    TOO_LATE = "too_late"
    """The run timed out before."""
    ALREADY_ANSWERED = "already_answered"
    """An earlier answer counts."""
    RECALLED = "recalled"
    """The wait was recalled before, without an answer."""
    NOT_FOUND = "not_found"
    """No run waits under the key yet, or the wait is past retention."""
    EARLY = "early"
    """No run waits under the key yet; the next one continues with this answer."""


class WaitOutcome(StrEnum):
    """The outcome of a wait for an answer."""

    WAITING = "waiting"
    """There is no answer yet, and the timeout has not passed."""
    ANSWERED = "answered"
    """An answer was given in time."""
    TIMED_OUT = "timed_out"
    """The timeout passed first; an answer cannot count any more."""
    RECALLED = "recalled"
    """The wait was recalled without an answer, or another wait under its key replaced it."""
    NOT_FOUND = "not_found"
    """No such message exists, or it is past retention."""


class SendOutcome(StrEnum):
    """The outcome of a send."""

    SENT = "sent"
    """A new message waits."""
    DUPLICATE = "duplicate"
    """The idempotency key was used before: the receipt is that of the first message."""
    KEPT = "kept"
    """A message with the same key waits and was kept: the receipt is that message's."""
    REPLACED = "replaced"
    """The message with the same key was recalled and this one waits in its stead."""


_Named = TypeVar("_Named", bound=StrEnum)


def named(kind: type[_Named], value: _Named | str, parameter: str) -> _Named:
    """The member of an enumeration, given itself, its value or its name.

    Raises:
        InvalidArgument: not a member; the message lists the members.
    """
    for member in kind:
        if str(value).lower() in (member.value.lower(), member.name.lower()):
            return member
    choices = ", ".join(repr(member.value) for member in kind)
    raise InvalidArgument(f"{parameter} {value!r} is not known: give one of {choices}")


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message to be sent with ``send_many``; the fields are the parameters of ``send``.

    Example:
        >>> NewMessage(b"4711", delay=timedelta(minutes=30), key="order-4711").key
        'order-4711'
    """

    body: object
    delay: timedelta | None = None
    deliver_at: Instant | None = None
    delay_level: int | None = None
    key: str | None = None
    tag: str | None = None
    properties: Mapping[str, Any] | None = None
    message_group: str | None = None
    idempotency_key: str | None = None
    on_conflict: OnConflict | str = OnConflict.ALLOW


#: A message of ``send_many``, as callers give it.
GivenMessage = NewMessage | Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SendReceipt:
    """The answer to a send.

    Attributes:
        message_id: 44 hexadecimal digits; stays the same over all retries. A reschedule gives the message a
            new id, and this id still finds it.
        deliver_at: the delivery instant in UTC: the instant given, or now if that is past.
        outcome: whether the message is new or was there already.
    """

    message_id: str
    deliver_at: datetime
    outcome: SendOutcome = SendOutcome.SENT


@dataclass(frozen=True, slots=True)
class KeyRecall:
    """The answer to a recall of all messages of a key.

    Attributes:
        outcome: ``recalled`` only if none of them was released.
        recalled: how many were taken back now, and are never delivered.
        already_released: how many were released before, as far as they are kept. If the key had more than 32
            messages before, the older ones count as one.
    """

    outcome: RecallOutcome
    recalled: int
    already_released: int


@dataclass(frozen=True, slots=True)
class RecallReceipt:
    """The answer to a recall by an id.

    Attributes:
        outcome: whether the message is taken back.
        message_id: the id that the message has now, which a reschedule changes. After a replacement, the id
            of the new message; None if no message was found.
    """

    outcome: RecallOutcome
    message_id: str | None


@dataclass(frozen=True, slots=True)
class AnswerReceipt:
    """The reply to an answer.

    Attributes:
        outcome: whether the answer counts.
        message_id: the present id of the message that waits for the answer; None if no message does.
    """

    outcome: AnswerOutcome
    message_id: str | None


@dataclass(frozen=True, slots=True)
class Wait:
    """A wait for an answer, as it is now.

    Attributes:
        outcome: what became of it.
        body: the body of the answer; None without one.
        properties: the properties of the answer; None without any.
    """

    outcome: WaitOutcome
    body: Any = None
    properties: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class EarlyAnswer:
    """An answer that was given early and that no wait has taken yet.

    Attributes:
        topic: the topic on which a run is to wait.
        key: the key under which it is to wait.
        body: the body of the answer.
        properties: its properties; None without any.
        until_at: when its retention ends, in UTC.
    """

    topic: str
    key: str
    body: Any
    properties: dict[str, Any] | None
    until_at: datetime


# topic id, queue, delivery instant in microseconds since 1970, sequence number; big endian, so ids sort as
# delivered
_ID = Struct(">ihqq")


def message_id(topic_id: int, queue: int, deliver_microseconds: int, seq: int) -> str:
    """The public id of a message: its place in the broker as 44 hexadecimal digits.

    Example:
        >>> message_id(1, 0, 1654773600000000, 65536)
        '0000000100000005e102009c98000000000000010000'
    """
    return _ID.pack(topic_id, queue, deliver_microseconds, seq).hex()


def deliver_at_of(identity: str) -> datetime:
    """The delivery instant that an id names, in UTC.

    Example:
        >>> deliver_at_of("0000000100000005e102009c98000000000000010000")
        datetime.datetime(2022, 6, 9, 11, 20, tzinfo=datetime.timezone.utc)
    """
    _, _, microseconds, _ = _ID.unpack(bytes.fromhex(identity))
    return from_microseconds(microseconds)


#: One row of ``duewheel.receive_batch`` in the order of :data:`ROW_COLUMNS`; instants as microseconds since
#: 1970, JSON as text.
Row = tuple[Any, ...]

#: The columns of the select list. The messages of a lease are followed by a row with only its handle.
ROW_COLUMNS = (
    "deliver_at",
    "seq",
    "body",
    "attempt",
    "tag",
    "key",
    "properties",
    "born_at",
    "asked_at",
    "message_group",
    "origin_id",
    "lease",
)
# The places of the columns in a row, so that a message need not search for them by name.
_DELIVER_AT = ROW_COLUMNS.index("deliver_at")
_SEQ = ROW_COLUMNS.index("seq")
_BODY = ROW_COLUMNS.index("body")
_ATTEMPT = ROW_COLUMNS.index("attempt")
_TAG = ROW_COLUMNS.index("tag")
_KEY = ROW_COLUMNS.index("key")
_PROPERTIES = ROW_COLUMNS.index("properties")
_BORN_AT = ROW_COLUMNS.index("born_at")
_ASKED_AT = ROW_COLUMNS.index("asked_at")
_MESSAGE_GROUP = ROW_COLUMNS.index("message_group")
_ORIGIN_ID = ROW_COLUMNS.index("origin_id")
_LEASE = ROW_COLUMNS.index("lease")


class Message:
    """A message that was received and is leased to this consumer until its batch's ``expires_at``.

    Its fields are read-only, and made from the row when they are asked for.
    """

    __slots__ = ("_lease", "_row", "_topic")

    def __init__(self, row: Row, lease: Lease, topic: str) -> None:
        self._row = row
        self._lease = lease
        self._topic = topic

    @property
    def message_id(self) -> str:
        """The id the sender was given; the same over all retries."""
        row = self._row
        origin_id: str | None = row[_ORIGIN_ID]
        if origin_id is not None:
            return origin_id
        lease = self._lease
        return message_id(lease.topic_id, lease.queue, row[_DELIVER_AT], row[_SEQ])

    @property
    def topic(self) -> str:
        """The topic it was sent to; the same for a retry."""
        return self._topic

    @property
    def key(self) -> str | None:
        """The sender's own key."""
        key: str | None = self._row[_KEY]
        return key

    @property
    def tag(self) -> str | None:
        """The tag that tag expressions choose by."""
        tag: str | None = self._row[_TAG]
        return tag

    @property
    def properties(self) -> dict[str, Any]:
        """The properties; empty when none were given. A new dictionary at each call."""
        text: str | None = self._row[_PROPERTIES]
        return {} if text is None else json.loads(text)

    @property
    def body(self) -> bytes:
        """The body as bytes; a str was sent as its UTF-8, any other value as its JSON."""
        return bytes(self._row[_BODY])

    def json(self) -> Any:
        """The body read as JSON, whatever its type.

        Raises:
            UnreadableBody: the body is not JSON in UTF-8. It is a ``ValueError``, too.

        Example::

            cancel_order(message.json()["order"])
        """
        return json_of(self.body, lambda: self.message_id)

    @property
    def value(self) -> Any:
        """What was sent: a dict is a dict again, a str a str; bytes and a body without a type are bytes.

        The property ``content-type`` has the type. JSON has no tuples and only text as names, so a tuple is
        read as a list. A new value at each call.

        Raises:
            UnreadableBody: the body is not what its type says.

        Example::

            cancel_order(message.value["order"])
        """
        properties = self._row[_PROPERTIES]
        if properties is None:
            return self.body
        if properties == JSON_ALONE:
            return self.json()
        return value_of(self.body, self.properties.get(CONTENT_TYPE), lambda: self.message_id)

    @property
    def born_at(self) -> datetime:
        """When it was sent, by the database's clock, in UTC; the same for a retry."""
        return from_microseconds(self._row[_BORN_AT])

    @property
    def deliver_at(self) -> datetime:
        """The instant this delivery was due, in UTC; a retry has its own."""
        return from_microseconds(self._row[_DELIVER_AT])

    @property
    def asked_at(self) -> datetime | None:
        """The instant that the sender asked for, in UTC, if it differs from ``deliver_at``."""
        microseconds: int | None = self._row[_ASKED_AT]
        return None if microseconds is None else from_microseconds(microseconds)

    @property
    def message_group(self) -> str | None:
        """The group whose messages share a queue."""
        group: str | None = self._row[_MESSAGE_GROUP]
        return group

    @property
    def attempt(self) -> int:
        """Which delivery this is: 1 for the first."""
        attempt: int = self._row[_ATTEMPT]
        return attempt

    @property
    def reconsume_times(self) -> int:
        """The number of retries: 0 for the first delivery."""
        return self.attempt - 1

    @property
    def expires_at(self) -> datetime:
        """When its lease ends unless extended, in UTC, as known when it was received."""
        return self._lease.expires_at

    @property
    def lease(self) -> Lease:
        """The handle to answer this one message with, which can be turned into JSON."""
        return replace(self._lease, seqs=(self._row[_SEQ],))

    def __repr__(self) -> str:
        return f"Message({self.message_id!r}, topic={self.topic!r}, key={self.key!r}, attempt={self.attempt})"


class Batch(Sequence[Message]):
    """The messages of one ``receive``, in order of delivery within each queue; false if it is empty.

    Attributes:
        topic: the topic they were sent to.
        group: the consumer group they are leased to.
        group_id: its number, which every lease names.
        leases: one handle for each lease, of all its messages; ``leases.to_json`` takes them.
    """

    __slots__ = ("_length", "_messages", "_rows", "group", "group_id", "leases", "topic")

    def __init__(self, rows: list[Row], *, topic: str, group: str, group_id: int) -> None:
        self.topic = topic
        self.group = group
        self.group_id = group_id
        self._rows = rows
        self._messages: list[Message] | None = None
        # Each lease's row has the number of message rows before it.
        self.leases: list[Lease] = []
        place = len(rows) - 1
        while place >= 0:
            lease = whole_lease(group_id, rows[place][_LEASE])
            self.leases.append(lease)
            place -= 1 + lease.count
        self.leases.reverse()
        self._length = len(rows) - len(self.leases)

    @property
    def expires_at(self) -> datetime | None:
        """When the first of its leases ends unless extended, in UTC; None when the batch is empty."""
        return min((lease.expires_at for lease in self.leases), default=None)

    def _made(self) -> list[Message]:
        messages = self._messages
        if messages is None:
            messages = self._messages = []
            topic = self.topic
            rows = iter(self._rows)
            for lease in self.leases:
                messages.extend(Message(row, lease, topic) for row in islice(rows, lease.count))
                next(rows)
        return messages

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, place: int) -> Message: ...

    @overload
    def __getitem__(self, place: slice) -> list[Message]: ...

    def __getitem__(self, place: int | slice) -> Message | list[Message]:
        return self._made()[place]

    def __iter__(self) -> Iterator[Message]:
        return iter(self._made())

    def __repr__(self) -> str:
        return f"Batch({len(self)} messages, topic={self.topic!r}, group={self.group!r})"


def leases_of(messages: Iterable[Message | Lease]) -> Iterator[Lease]:
    """The leases of messages, one handle for each; leases among them stay as they are."""
    chosen: dict[int, tuple[Lease, list[int]]] = {}
    for message in messages:
        if isinstance(message, Lease):
            yield message
            continue
        lease = message._lease
        entry = chosen.get(id(lease))
        if entry is None:
            entry = chosen[id(lease)] = (lease, [])
        entry[1].append(message._row[_SEQ])
    for lease, seqs in chosen.values():
        yield replace(lease, seqs=tuple(seqs))


def whole_lease(group_id: int, handle: str) -> Lease:
    """A lease with all its messages, from the six numbers of its handle."""
    topic_id, queue, n, token, expires_us, count = map(int, handle.split())
    return Lease(group_id, topic_id, queue, n, token, from_microseconds(expires_us), count)
