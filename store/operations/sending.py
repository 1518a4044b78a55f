"""Sending one message, or many at once.

One message is one call of the SQL function ``duewheel.send``. It checks everything that SQL can see, so
programs in all languages have the same limits and the same errors. On the broker's own connection that is one
statement and one commit.

Many messages are one COPY (:mod:`duewheel.store.operations.copying`), which costs least on both sides. If
each replaces the waiting messages of a different key, that is one statement more. If a message needs anything
else (an idempotency key, or to keep the message that waits under its key), all are sent one by one, still in
one transaction. A login that may not write into the table, such as one with only the role duewheel_producer,
sends some hundred messages per statement instead of using COPY.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg2

from duewheel.store.database.connected import Connected
from duewheel.store.database.connections import (
    Database,
    DriverConnection,
    DriverCursor,
    Rows,
    driver_connection,
    fetch,
    transaction,
)
from duewheel.store.database.prepared import Prepared
from duewheel.store.operations.recalling import decided
from duewheel.store.values.bodies import check_text, properties_to_json, to_bytes
from duewheel.store.values.content_types import with_content_type
from duewheel.store.values.delivery_time import bounded, when
from duewheel.store.values.errors import BrokerUnreachable, DueWheelError, InvalidArgument
from duewheel.store.values.instants import Instant, span_to_microseconds, to_datetime, to_microseconds
from duewheel.store.values.kinds import a_kind
from duewheel.store.values.messages import (
    GivenMessage,
    NewMessage,
    OnConflict,
    SendOutcome,
    SendReceipt,
    deliver_at_of,
    named,
)

if TYPE_CHECKING:
    from duewheel.store.database.connections import CallerConnection

#: The most messages of one ``send_many``.
MAX_MESSAGES = 1_000_000
# How many messages, and about how many bytes of bodies, a statement sends if COPY is not allowed.
_CHUNK_MESSAGES = 500
_CHUNK_BYTES = 8 * 1024 * 1024
_SEND = Prepared(
    "duewheel_send",
    """
select message_id, deliver_at, outcome
from duewheel.send(%s, %s::bytea, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
""",
)

# Most messages have a body, a delay or an instant, and perhaps a key. Spans and instants are microseconds,
# which cost both sides less than text does, and the id contains the delivery instant.
_SEND_PLAIN = Prepared(
    "duewheel_send_plain",
    """
select (s.receipt).message_id, (s.receipt).outcome
from (select duewheel.send(
    %s, %s::bytea, %s * interval '1 microsecond', duewheel.from_unix_micros(%s), key => %s,
    properties => %s::jsonb) as receipt
    offset 0) s
""",
)

_SEND_CHUNK = """
select sent.message_id, sent.deliver_at, sent.outcome
from unnest(
    %s::bytea[], %s::interval[], %s::timestamptz[], %s::integer[], %s::text[], %s::text[], %s::jsonb[],
    %s::text[], %s::text[], %s::text[]
) with ordinality m (
    body, delay, deliver_at, delay_level, key, tag, properties, message_group, idempotency_key, on_conflict,
    place)
cross join lateral duewheel.send(
    %s, m.body, m.delay, m.deliver_at, m.delay_level, m.key, m.tag, m.properties, m.message_group,
    m.idempotency_key, m.on_conflict, %s) sent
order by m.place
"""

_LOCK_KEYS = "select duewheel.lock_keys(%s, %s, %s)"

_FIELDS = frozenset(field.name for field in fields(NewMessage))
_LOOK_UPS = frozenset({"idempotency_key", "on_conflict"})


class _Call(NamedTuple):
    """The parameters of the SQL function send, in its order, with types that Postgres can take."""

    topic: str
    body: psycopg2.extensions.Binary
    delay: timedelta | None
    deliver_at: datetime | None
    delay_level: int | None
    key: str | None
    tag: str | None
    properties: str | None
    message_group: str | None
    idempotency_key: str | None
    on_conflict: str
    now: datetime | None


class Sending(Connected):
    """Sending messages."""

    def send(
        self,
        topic: str,
        body: object,
        *,
        delay: timedelta | None = None,
        deliver_at: Instant | None = None,
        delay_level: int | None = None,
        key: str | None = None,
        tag: str | None = None,
        properties: Mapping[str, Any] | None = None,
        message_group: str | None = None,
        idempotency_key: str | None = None,
        on_conflict: OnConflict | str = OnConflict.ALLOW,
        connection: CallerConnection | None = None,
    ) -> SendReceipt:
        """Send one message; to a DELAY topic with one of ``delay``, ``deliver_at`` and ``delay_level``.

        Args:
            topic: the topic.
            body: bytes, a str (sent as UTF-8) or a JSON-able value; at most 4 MiB. ``Message.value`` returns
                it again, as far as JSON can express it.
            delay: the time from now, by the database's clock.
            deliver_at: the instant: an aware datetime, a pendulum instant, or an int of Unix milliseconds.
                A past instant is delivered at once.
            delay_level: a level of the topic's ``delay_levels``, 1 to 64; without its own, the topic has 18
                from 1 s to 2 h. 0 is no delay, and a level above the last counts as the last.
            key: the sender's own name for the message, 1 to 255 characters, to find and recall it by.
            tag: 1 to 127 characters without spaces and ``|``, for consumers to choose by.
            properties: names and JSON-able values, at most 16 KiB as JSON. ``content-type`` is the type of
                the body: set for a str and a JSON-able value if it is not given.
            message_group: messages of one group go to one queue.
            idempotency_key: a second send with the same key sends nothing and returns the receipt of the
                first.
            on_conflict: what to do when a message with the same key waits: "allow", "keep" or "replace". If
                that message is released during the call, nothing is replaced, and this one is sent.
            connection: a transaction of the caller, a connection of psycopg2 or psycopg 3, or a SQLAlchemy
                ``Connection`` or ``Session``: the message exists if and when that commits.

        Returns:
            The id and the delivery instant.

        Raises:
            UnknownTopic, WrongMessageType, DelayOutOfRange, InvalidDelayLevel, InvalidInstant, BodyTooLarge,
            PropertiesTooLarge, InvalidKey, InvalidTag, NulInText, InvalidArgument: a parameter is wrong;
                nothing is sent.

        Example::

            broker.send("orders.timeout", b"4711", delay=timedelta(minutes=30), connection=connection)
        """
        check_text(topic, "topic")
        now = self._database.now()
        rare = tag, properties, message_group, idempotency_key, delay_level, now
        if on_conflict != OnConflict.ALLOW or any(given is not None for given in rare):
            message = NewMessage(
                body,
                delay=delay,
                deliver_at=deliver_at,
                delay_level=delay_level,
                key=key,
                tag=tag,
                properties=properties,
                message_group=message_group,
                idempotency_key=idempotency_key,
                on_conflict=on_conflict,
            )
            ask = partial(self._database.rows, _SEND, _call(topic, message, now), connection)
            return _receipt((ask() if connection is not None else decided(ask))[0])
        check_text(key, "key", optional=True)
        parameters = (
            topic,
            to_bytes(body),
            None if delay is None else span_to_microseconds(bounded(delay)),
            None if deliver_at is None else to_microseconds(deliver_at),
            key,
            properties_to_json(with_content_type(body, None)),
        )
        ((identity, outcome),) = self._database.rows(_SEND_PLAIN, parameters, connection)
        return SendReceipt(
            identity,
            deliver_at_of(identity),
            SendOutcome.SENT if outcome == "sent" else SendOutcome(outcome),
        )

    def send_many(
        self,
        topic: str,
        messages: Iterable[NewMessage | Mapping[str, Any]],
        connection: CallerConnection | None = None,
    ) -> Sequence[SendReceipt]:
        """Send many messages at once: all of them or, with an error, none.

        Args:
            topic: the topic.
            messages: mappings with the names of :meth:`send`'s parameters, or ``NewMessage``; at most
                a million.
            connection: a transaction of the caller; see :meth:`send`.

        Returns:
            The receipts, in the order given.

        Raises:
            DueWheelError: see :meth:`send`; its ``index`` is the place of the message. Nothing is sent.

        Example::

            broker.send_many("orders.timeout", [{"body": b"1", "delay": timedelta(minutes=30)}, ...])
        """
        check_text(topic, "topic")
        given = list(messages)
        if len(given) > MAX_MESSAGES:
            raise InvalidArgument(
                f"{len(given)} messages were given, the limit of one call is {MAX_MESSAGES}: "
                "send them in parts"
            )
        if not given:
            return []
        send = partial(_together, self._database, topic, given, replaced=_replaced_keys(given))
        if connection is not None:
            caller = driver_connection(connection)
            self._database.verify(caller)
            return send(caller)
        return decided(partial(self._database.run, send))


def _together(
    database: Database,
    topic: str,
    messages: list[GivenMessage],
    connection: DriverConnection,
    *,
    replaced: dict[int, str] | None,
) -> Sequence[SendReceipt]:
    from duewheel.store.operations import copying

    with transaction(connection) as cursor:
        if replaced is not None:
            now = database.now()
            begun = copying.begin(cursor, topic, len(messages), now)
            if begun.may_copy:
                return copying.copy(connection, cursor, begun, topic, messages, replaced, now)
        # A login that has only a role may call the functions and may not write into the table.
        return _in_chunks(database, connection, cursor, topic, messages)


def _in_chunks(
    database: Database,
    connection: DriverConnection,
    cursor: DriverCursor,
    topic: str,
    messages: list[GivenMessage],
) -> Sequence[SendReceipt]:
    calls = _calls(database, topic, messages)
    keys = [call.key for call in calls if call.on_conflict != OnConflict.ALLOW]
    idempotency_keys = [call.idempotency_key for call in calls]
    if any(keys) or any(idempotency_keys):
        fetch(connection, _LOCK_KEYS, (topic, keys, idempotency_keys))
    receipts: list[SendReceipt] = []
    for chunk in _chunks(calls):
        _topic, *columns, _now = zip(*chunk, strict=True)
        cursor.execute("savepoint duewheel_chunk")
        try:
            rows = fetch(connection, _SEND_CHUNK, (*map(list, columns), topic, database.now()))
        except BrokerUnreachable:
            raise
        except DueWheelError:
            # Single sends show which message the error is about.
            cursor.execute("rollback to savepoint duewheel_chunk")
            rows = _rows_of_single_sends(connection, chunk, len(receipts))
        cursor.execute("release savepoint duewheel_chunk")
        receipts.extend(map(_receipt, rows))
    return receipts


def _chunks(calls: list[_Call]) -> Iterator[list[_Call]]:
    """Runs of calls whose statement is small enough."""
    chunk: list[_Call] = []
    size = 0
    for call in calls:
        body_size = len(call.body.adapted)
        if chunk and (len(chunk) == _CHUNK_MESSAGES or size + body_size > _CHUNK_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(call)
        size += body_size
    yield chunk


def _calls(database: Database, topic: str, messages: list[GivenMessage]) -> list[_Call]:
    """The parameters of a send of each message; an error names the message."""
    now = database.now()
    calls: list[_Call] = []
    try:
        for message in messages:
            whole = message if isinstance(message, NewMessage) else NewMessage(**message)
            calls.append(_call(topic, whole, now))
    except DueWheelError as error:
        raise error.at(len(calls)) from error
    return calls


def _rows_of_single_sends(connection: DriverConnection, calls: list[_Call], first_index: int) -> Rows:
    """Sends with a statement each; an error names the message."""
    rows: Rows = []
    try:
        for call in calls:
            rows += fetch(connection, _SEND.text, call)
    except DueWheelError as error:
        raise error.at(first_index + len(rows)) from error
    return rows


def _replaced_keys(messages: list[GivenMessage]) -> dict[int, str] | None:
    """The keys whose waiting messages are replaced, by the messages' places; None if a COPY cannot do it.

    Refuses a value that is not a message.
    """
    replaced: dict[int, str] | None = {}
    # Messages of one call usually have the same names in the same order, which are then checked once.
    plain: set[tuple[str, ...]] = set()
    for index, message in enumerate(messages):
        if type(message) is dict and tuple(message) in plain:
            continue
        if isinstance(message, NewMessage):
            asked = message.idempotency_key, message.on_conflict, message.key
        elif isinstance(message, Mapping):
            names = message.keys()
            if not names <= _FIELDS or "body" not in names:
                raise InvalidArgument(
                    f"a message has the names {sorted(map(str, names))}: give body and any of "
                    f"{sorted(_FIELDS - {'body'})}",
                    index=index,
                )
            if not names & _LOOK_UPS:
                plain.add(tuple(message))
                continue
            asked = message.get("idempotency_key"), message.get("on_conflict", "allow"), message.get("key")
        else:
            raise InvalidArgument(f"a message is {a_kind(message)}: give mappings or NewMessage", index=index)
        idempotency_key, on_conflict, key = asked
        if idempotency_key is None and on_conflict == OnConflict.ALLOW:
            continue
        if idempotency_key is not None or on_conflict != OnConflict.REPLACE or not isinstance(key, str):
            replaced = None
        elif replaced is not None:
            replaced[index] = key
    # If two messages have the same key, the later one replaces the earlier one. A message may have the key
    # of a message that replaces.
    if replaced:
        keys = [key for key in map(_key, messages) if type(key) is str]
        if len(set(keys)) < len(keys):
            return None
    return replaced


def _key(message: GivenMessage) -> object:
    return message.key if isinstance(message, NewMessage) else message.get("key")


def _call(topic: str, message: NewMessage, now: datetime | None) -> _Call:
    check_text(message.key, "key", optional=True)
    check_text(message.tag, "tag", optional=True)
    check_text(message.message_group, "message_group", optional=True)
    check_text(message.idempotency_key, "idempotency_key", optional=True)
    delay, deliver_at, delay_level = when(message.delay, message.deliver_at, message.delay_level)
    return _Call(
        topic=topic,
        body=psycopg2.Binary(to_bytes(message.body)),
        delay=delay,
        deliver_at=deliver_at,
        delay_level=delay_level,
        key=message.key,
        tag=message.tag,
        properties=properties_to_json(with_content_type(message.body, message.properties)),
        message_group=message.message_group,
        idempotency_key=message.idempotency_key,
        on_conflict=named(OnConflict, message.on_conflict, "on_conflict").value,
        now=now,
    )


def _receipt(row: tuple[Any, ...]) -> SendReceipt:
    identity, deliver_at, outcome = row
    return SendReceipt(identity, to_datetime(deliver_at), SendOutcome(outcome))
