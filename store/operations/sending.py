"""Sending one message, or many at once.

One message is one call of the SQL function ``duewheel.send``, which checks everything that SQL can see, so
that a program in any language meets the same limits and the same errors. On the broker's own connection that
is one statement and one commit.

Many messages are one COPY: the transaction id first and the clock after it (``duewheel.begin_copy``), then
the rows in COPY's binary form, which costs least on both sides; a second COPY takes those whose slot is not
made yet, as they are due in weeks or years. Nothing is written before every message has been checked. Python
only looks for values that may be wrong; the SQL functions of a single send then judge them, so there is one
wording and one truth. Where a message asks for more than a row (an idempotency key, a look at the messages
that wait under its key), all are sent one by one, still in one transaction. A login that may not write into
the table, such as one that has only the role duewheel_producer, sends some hundred messages per statement
instead of using COPY.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from io import BytesIO
from struct import Struct
from typing import TYPE_CHECKING, Any, overload

import psycopg2
from psycopg2.extensions import encodings

from duewheel.store.database.connections import (
    Database,
    DriverConnection,
    DriverCursor,
    driver_connection,
    fetch,
    transaction,
)
from duewheel.store.database.prepared import Prepared
from duewheel.store.values.bodies import MAX_BODY_BYTES, check_text, properties_to_json, to_bytes
from duewheel.store.values.errors import BrokerUnreachable, DueWheelError, InvalidArgument
from duewheel.store.values.instants import (
    EPOCH,
    Instant,
    from_microseconds,
    span_to_microseconds,
    to_datetime,
    to_microseconds,
    to_span,
)
from duewheel.store.values.messages import (
    MessageType,
    NewMessage,
    OnConflict,
    SendOutcome,
    SendReceipt,
    deliver_at_of,
    message_id,
    named,
)

if TYPE_CHECKING:
    from duewheel.store.database.connections import CallerConnection

#: The most messages of one ``send_many``.
MAX_MESSAGES = 1_000_000
# How many messages, and about how many bytes of bodies, a statement sends where COPY is not allowed.
_CHUNK_MESSAGES = 500
_CHUNK_BYTES = 8 * 1024 * 1024
# Longer spans are out of range for every topic; much longer ones cannot be added to an instant in Postgres.
_LONGEST_DELAY = timedelta(days=4000)
# The delay level is an int4 to the database; whatever is above the last level counts as the last.
_HIGHEST_LEVEL = 2**31 - 1

_SEND = Prepared(
    "duewheel_send",
    """
select message_id, deliver_at, outcome
from duewheel.send(%s, %s::bytea, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
""",
)

# Most messages have a body, a delay or an instant, and perhaps a key. Spans and instants are microseconds,
# which cost both sides less than text does, and the id says the delivery instant.
_SEND_PLAIN = Prepared(
    "duewheel_send_plain",
    """
select (s.receipt).message_id, (s.receipt).outcome
from (select duewheel.send(
    %s, %s::bytea, %s * interval '1 microsecond', duewheel.from_unix_micros(%s), key => %s) as receipt
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

_BEGIN_SEND = """
select topic_id, message_type, queues, first_block * 65536,
    duewheel.unix_micros(now_at), duewheel.unix_micros(floor_at),
    (extract(epoch from max_delay) * 1000000)::bigint, out_of_range,
    duewheel.unix_micros(quiet_until), duewheel.unix_micros(notify_before), duewheel.unix_micros(near_until),
    duewheel.unix_micros(released_to),
    has_table_privilege('duewheel.message', 'insert')
from duewheel.begin_copy(%s, %s, %s)
"""

_GROUP_QUEUES = "select g, ((hashtextextended(g, 0) & 2147483647) %% %s)::integer from unnest(%s::text[]) g"

_JUDGE_CONTENT = "select duewheel.check_message(%s::bytea, %s, %s, %s::jsonb, %s, null)"

_JUDGE_GROUP = "select duewheel.check_message_group(%s, %s, null)"

_JUDGE_INSTANT = """
select duewheel.unix_micros(duewheel.asked_instant(
    t.name, t.message_type, t.max_delay, t.out_of_range, t.delay_levels,
    duewheel.from_unix_micros(%s), %s, %s, %s))
from duewheel.topic_by_name(%s) t
"""

_HOLD_BACK = "select duewheel.hold_back(%s, duewheel.from_unix_micros(%s))"

_NOTIFY_DUE = "select duewheel.notify_due(%s, duewheel.from_unix_micros(%s))"

# The slots that are there, and the table of what is due after them.
_TABLES = ("duewheel.message", "duewheel.far_message")
_COPY = """
copy {table}
    (topic_id, queue, deliver_at, seq, born_at, asked_at, tag, key, properties, message_group, body)
from stdin (format binary)
"""
_COPY_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_COPY_TRAILER = b"\xff\xff"
# Microseconds from Unix's epoch to the one Postgres counts from, 2000-01-01.
_POSTGRES_EPOCH = 946_684_800_000_000

_LENGTH = Struct(">i")
_TIMESTAMP = Struct(">iq")
_NULL = _LENGTH.pack(-1)
# Number of columns, topic_id and the length of queue; the same in all rows.
_HEAD = Struct(">hiii")
# _HEAD, then queue, deliver_at and seq, the last two behind their lengths.
_PLACE = Struct(">14shiqiq")
# _PLACE, then born_at and nulls up to the body, and the body's length: a row with nothing but a body.
_PLAIN = Struct(">14shiqiq32si")
# _PLACE, then born_at, two nulls and the key's length; then, behind the key, two nulls and the body's length.
_KEYED = Struct(">14shiqiq20si")
_END = Struct(">4s4si")

# Of a row: its instant, and from where to where its pieces stand.
_RowPlace = tuple[int, int, int]

_FIELDS = frozenset(field.name for field in fields(NewMessage))
_LOOK_UPS = frozenset({"idempotency_key", "on_conflict"})
# Properties that Postgres, which writes numbers its own way, cannot make larger than the limit.
_SURELY_SMALL = 4096


def send(
    database: Database,
    topic: str,
    body: object,
    delay: timedelta | None,
    deliver_at: Instant | None,
    delay_level: int | None,
    key: str | None,
    tag: str | None,
    properties: Mapping[str, Any] | None,
    message_group: str | None,
    idempotency_key: str | None,
    on_conflict: OnConflict | str,
    connection: CallerConnection | None,
) -> SendReceipt:
    """Send one message; see :meth:`duewheel.store.broker.Broker.send`."""
    check_text(topic, "topic")
    now = database.now()
    if (
        tag is None
        and properties is None
        and idempotency_key is None
        and message_group is None
        and delay_level is None
        and on_conflict == "allow"
        and now is None
    ):
        if key is not None:
            check_text(key, "key")
        parameters = (
            topic,
            to_bytes(body),
            None if delay is None else span_to_microseconds(_bounded(delay)),
            None if deliver_at is None else to_microseconds(deliver_at),
            key,
        )
        identity, outcome = database.row(_SEND_PLAIN, parameters, connection)
        return SendReceipt(
            identity,
            deliver_at_of(identity),
            SendOutcome.SENT if outcome == "sent" else SendOutcome(outcome),
        )
    message = NewMessage(
        body,
        delay,
        deliver_at,
        delay_level,
        key,
        tag,
        properties,
        message_group,
        idempotency_key,
        on_conflict,
    )
    return _receipt(database.row(_SEND, _parameters(topic, message, now), connection))


def send_many(
    database: Database,
    topic: str,
    messages: Iterable[NewMessage | Mapping[str, Any]],
    connection: CallerConnection | None = None,
) -> Sequence[SendReceipt]:
    """Send many messages in one transaction; see :meth:`duewheel.store.broker.Broker.send_many`."""
    check_text(topic, "topic")
    given = list(messages)
    if len(given) > MAX_MESSAGES:
        raise InvalidArgument(
            f"{len(given)} messages were given, the limit of one call is {MAX_MESSAGES}: send them in parts"
        )
    if not given:
        return []
    one_by_one = _need_look_ups(given)
    if connection is not None:
        caller = driver_connection(connection)
        database.verify(caller)
        return (_one_by_one if one_by_one else _copied)(database, caller, topic, given)
    with database.lend() as lent:
        return (_one_by_one if one_by_one else _copied)(database, lent, topic, given)


class _Receipts(Sequence[SendReceipt]):
    """The receipts of one COPY, made when they are looked at."""

    __slots__ = ("_deliver", "_first_seq", "_queues", "_topic_id")

    def __init__(self, topic_id: int, queues: list[int], deliver: list[int], first_seq: int) -> None:
        self._topic_id = topic_id
        self._queues = queues
        self._deliver = deliver
        self._first_seq = first_seq

    def __len__(self) -> int:
        return len(self._deliver)

    @overload
    def __getitem__(self, place: int) -> SendReceipt: ...

    @overload
    def __getitem__(self, place: slice) -> list[SendReceipt]: ...

    def __getitem__(self, place: int | slice) -> SendReceipt | list[SendReceipt]:
        if isinstance(place, slice):
            return [self[index] for index in range(*place.indices(len(self)))]
        index = range(len(self))[place]
        deliver = self._deliver[index]
        identity = message_id(self._topic_id, self._queues[index], deliver, self._first_seq + index)
        return SendReceipt(identity, from_microseconds(deliver))

    def __repr__(self) -> str:
        return f"[{', '.join(map(repr, self))}]"


@dataclass(slots=True)
class _Begun:
    """The answer of ``duewheel.begin_copy``; instants and spans in microseconds."""

    topic_id: int
    message_type: str
    queues: int
    first_seq: int
    now: int
    floor: int
    max_delay: int
    out_of_range: str
    quiet_until: int | None
    notify_before: int
    near_until: int
    released_to: int | None
    may_copy: bool


def _copied(
    database: Database,
    connection: DriverConnection,
    topic: str,
    messages: list[NewMessage | Mapping[str, Any]],
) -> Sequence[SendReceipt]:
    with transaction(connection) as cursor:
        block_count = (len(messages) + 65535) // 65536
        cursor.execute(_BEGIN_SEND, (topic, block_count, database.now()))
        begun = _Begun(*cursor.fetchall()[0])
        if not begun.may_copy:
            # A login that has only a role may call the functions and not write into the table.
            return _in_chunks(database, connection, cursor, topic, messages)
        tables, queues, deliveries = _rows(connection, begun, topic, messages)
        for table, rows in zip(_TABLES, tables, strict=True):
            if rows:
                cursor.copy_expert(_COPY.format(table=table), BytesIO(rows), size=len(rows))
        first = min(deliveries)
        if begun.released_to is not None and first <= begun.released_to:
            cursor.execute(_HOLD_BACK, (begun.topic_id, begun.released_to))
        due = _to_announce(begun, deliveries) if first < begun.notify_before else None
        if due is not None:
            cursor.execute(_NOTIFY_DUE, (begun.topic_id, due))
    return _Receipts(begun.topic_id, queues, deliveries, begun.first_seq)


def _in_chunks(
    database: Database,
    connection: DriverConnection,
    cursor: DriverCursor,
    topic: str,
    messages: list[NewMessage | Mapping[str, Any]],
) -> Sequence[SendReceipt]:
    calls = _calls(database, topic, messages)
    receipts: list[SendReceipt] = []
    for chunk in _chunks(calls):
        _, *columns, _ = zip(*chunk, strict=True)
        cursor.execute("savepoint duewheel_chunk")
        try:
            rows = fetch(connection, _SEND_CHUNK, (*map(list, columns), topic, database.now()))
        except BrokerUnreachable:
            raise
        except DueWheelError:
            # Which message it is about shows when they are sent singly.
            cursor.execute("rollback to savepoint duewheel_chunk")
            rows = _rows_of_single_sends(connection, chunk, len(receipts))
        cursor.execute("release savepoint duewheel_chunk")
        receipts.extend(map(_receipt, rows))
    return receipts


def _chunks(calls: list[tuple[Any, ...]]) -> Iterator[list[tuple[Any, ...]]]:
    """Runs of calls whose statement stays small."""
    chunk: list[tuple[Any, ...]] = []
    size = 0
    for call in calls:
        body_size = len(call[1].adapted)
        if chunk and (len(chunk) == _CHUNK_MESSAGES or size + body_size > _CHUNK_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(call)
        size += body_size
    yield chunk


def _one_by_one(
    database: Database,
    connection: DriverConnection,
    topic: str,
    messages: list[NewMessage | Mapping[str, Any]],
) -> Sequence[SendReceipt]:
    calls = _calls(database, topic, messages)
    with transaction(connection):
        return [_receipt(row) for row in _rows_of_single_sends(connection, calls, 0)]


def _calls(
    database: Database, topic: str, messages: list[NewMessage | Mapping[str, Any]]
) -> list[tuple[Any, ...]]:
    """The parameters of a send of each message; an error names the message."""
    now = database.now()
    calls: list[tuple[Any, ...]] = []
    try:
        for message in messages:
            whole = message if isinstance(message, NewMessage) else NewMessage(**message)
            calls.append(_parameters(topic, whole, now))
    except DueWheelError as error:
        raise error.at(len(calls)) from error
    return calls


def _rows_of_single_sends(
    connection: DriverConnection, calls: list[tuple[Any, ...]], first_index: int
) -> list[tuple[Any, ...]]:
    """Sends with a statement each; an error names the message."""
    rows: list[tuple[Any, ...]] = []
    try:
        for call in calls:
            rows += fetch(connection, _SEND.text, call)
    except DueWheelError as error:
        raise error.at(first_index + len(rows)) from error
    return rows


def _need_look_ups(messages: list[NewMessage | Mapping[str, Any]]) -> bool:
    """Whether a message asks for more than a row of its own; refuses a value that is not a message."""
    answer = False
    # Messages of one call mostly have the same names in the same order: those are looked at once.
    plain: set[tuple[str, ...]] = set()
    for index, message in enumerate(messages):
        if type(message) is dict and tuple(message) in plain:
            continue
        if isinstance(message, NewMessage):
            if message.idempotency_key is not None or message.on_conflict != OnConflict.ALLOW:
                answer = True
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
            elif message.get("idempotency_key") is not None or message.get("on_conflict", "allow") != "allow":
                answer = True
        else:
            raise InvalidArgument(
                f"a message is a {type(message).__name__}: give mappings or NewMessage", index=index
            )
    return answer


def _rows(
    connection: DriverConnection,
    begun: _Begun,
    topic: str,
    messages: list[NewMessage | Mapping[str, Any]],
) -> tuple[tuple[bytes, bytes], list[int], list[int]]:
    """The rows of all messages in COPY's binary form for each of `_TABLES`, and each one's queue and instant.

    This is the one loop of the store that runs once for each message that is sent. It does the least for the
    common case, and leaves the rest to the functions below it.
    """
    now, floor, seq = begun.now, begun.floor, begun.first_seq
    # A topic that takes no delays has each one judged.
    latest = now + begun.max_delay if begun.message_type == MessageType.DELAY else -(2**63)
    queue_count = begun.queues
    head = _HEAD.pack(11, 4, begun.topic_id, 2)
    born_at = _TIMESTAMP.pack(8, now - _POSTGRES_EPOCH)
    plain = born_at + _NULL * 5
    keyed = born_at + _NULL * 2
    pack_keyed, pack_end = _KEYED.pack, _END.pack
    pack_plain, pack_place, pack_length = _PLAIN.pack, _PLACE.pack, _LENGTH.pack
    judge = _Judge(connection, begun, topic)
    if begun.message_type == MessageType.FIFO:
        _check_groups(connection, begun, topic, messages)
    group_queues: dict[str, int] = {}
    near: list[bytes] = []
    far: list[bytes] = []
    near_places: list[_RowPlace] = []
    far_places: list[_RowPlace] = []
    near_until = begun.near_until
    queues: list[int] = []
    deliveries: list[int] = []
    index = -1
    try:
        for index, message in enumerate(messages):  # noqa: B007 -- the error handler reads the index
            delay = level = key = tag = properties = group = None
            if type(message) is not dict and isinstance(message, NewMessage):
                body, deliver_at = message.body, message.deliver_at
                delay, level = message.delay, message.delay_level
                key, tag, properties = message.key, message.tag, message.properties
                group = message.message_group
            else:
                body, deliver_at = message["body"], message.get("deliver_at")
                if len(message) > 2 or deliver_at is None:
                    get = message.get
                    delay, level = get("delay"), get("delay_level")
                    key, tag, properties, group = (
                        get("key"),
                        get("tag"),
                        get("properties"),
                        get("message_group"),
                    )

            if type(body) is not bytes or len(body) > MAX_BODY_BYTES:
                body = to_bytes(body)

            if deliver_at is not None and delay is None and level is None:
                if type(deliver_at) is datetime and deliver_at.tzinfo is UTC:
                    # What to_microseconds does, without the call.
                    since = deliver_at - EPOCH
                    asked = (since.days * 86400 + since.seconds) * 1_000_000 + since.microseconds
                else:
                    asked = to_microseconds(deliver_at)
                if asked > latest:
                    asked = judge.instant(None, deliver_at, None)
            elif delay is not None and deliver_at is None and level is None:
                asked = now + span_to_microseconds(_bounded(delay))
                if asked > latest:
                    asked = judge.instant(delay, None, None)
            else:
                asked = judge.level_or_none(delay, deliver_at, level)
            deliver = asked if asked > floor else floor
            pieces, places = (near, near_places) if deliver < near_until else (far, far_places)
            add, start = pieces.append, len(pieces)

            simple = tag is None and properties is None and group is None and asked == deliver
            if simple and key is None:
                queue = seq % queue_count
                add(pack_plain(head, queue, 8, deliver - _POSTGRES_EPOCH, 8, seq, plain, len(body)))
            elif simple and type(key) is str and key.isascii() and 0 < len(key) < 256 and "\0" not in key:
                queue = seq % queue_count
                add(pack_keyed(head, queue, 8, deliver - _POSTGRES_EPOCH, 8, seq, keyed, len(key)))
                add(key.encode())
                add(pack_end(_NULL, _NULL, len(body)))
            else:
                content = judge.content(body, key, tag, properties, group)
                if group is None:
                    queue = seq % queue_count
                else:
                    if not group_queues:
                        group_queues = _queues_of_groups(connection, queue_count, messages)
                    queue = group_queues[group]
                add(pack_place(head, queue, 8, deliver - _POSTGRES_EPOCH, 8, seq))
                add(born_at)
                add(_NULL if asked == deliver else _TIMESTAMP.pack(8, asked - _POSTGRES_EPOCH))
                add(content)
                add(pack_length(len(body)))
            add(body)
            places.append((deliver, start, len(pieces)))
            queues.append(queue)
            deliveries.append(deliver)
            seq += 1
    except DueWheelError as error:
        raise error.at(index) from error
    return (_copy_of(near, near_places), _copy_of(far, far_places)), queues, deliveries


def _copy_of(pieces: list[bytes], places: list[_RowPlace]) -> bytes:
    """The whole COPY. Its rows come in the order of their instants, as indexes then fill page after page."""
    if not places:
        return b""
    in_order = sorted(places)
    if in_order != places:
        pieces = [piece for _, start, end in in_order for piece in pieces[start:end]]
    return b"".join((_COPY_HEADER, *pieces, _COPY_TRAILER))


class _Judge:
    """Asks the database about values that are not right at a glance, and keeps its answers."""

    def __init__(self, connection: DriverConnection, begun: _Begun, topic: str) -> None:
        self._connection = connection
        self._begun = begun
        self._topic = topic
        self._codec = encodings[connection.encoding]
        self._levels: dict[int | None, int] = {}
        self._tags: dict[str, bytes] = {}

    def instant(self, delay: object, deliver_at: object, level: object) -> int:
        """The instant a message asks for, in microseconds, by the SQL function, whose errors it raises."""
        parameters = (self._begun.now, *when(delay, deliver_at, level), self._topic)
        asked: int = fetch(self._connection, _JUDGE_INSTANT, parameters)[0][0]
        return asked

    def level_or_none(self, delay: object, deliver_at: object, level: object) -> int:
        """The same for a delay level, or for a message without any time; asks once for each level."""
        if delay is not None or deliver_at is not None or not (level is None or type(level) is int):
            return self.instant(delay, deliver_at, level)
        asked = self._levels.get(level)
        if asked is None:
            asked = self._levels[level] = self.instant(None, None, level)
        return asked

    def content(self, body: bytes, key: Any, tag: Any, properties: Any, group: Any) -> bytes:
        """The columns tag, key, properties and message_group as COPY's binary form."""
        check_text(key, "key", optional=True)
        check_text(tag, "tag", optional=True)
        check_text(group, "message_group", optional=True)
        properties_json = properties_to_json(properties)
        known_tag = tag is None or tag in self._tags
        if (
            not known_tag
            or (key is not None and not 0 < len(key) <= 255)
            or (group is not None and not 0 < len(group) <= 255)
            or (properties_json is not None and len(properties_json) > _SURELY_SMALL)
        ):
            fetch(self._connection, _JUDGE_CONTENT, (psycopg2.Binary(body), key, tag, properties_json, group))
        tag_column = _NULL
        if tag is not None:
            if not known_tag:
                self._tags[tag] = self._text(tag)
            tag_column = self._tags[tag]
        return b"".join(
            (
                tag_column,
                _NULL if key is None else self._text(key),
                _NULL if properties_json is None else self._text("\1" + properties_json),
                _NULL if group is None else self._text(group),
            )
        )

    def _text(self, value: str) -> bytes:
        try:
            content = value.encode(self._codec)
        except UnicodeEncodeError as error:
            raise InvalidArgument(
                f"{value[:40]!r} cannot be written in the connection's client encoding {self._codec} "
                f"({error.reason}): use a connection with client_encoding UTF8"
            ) from None
        return _LENGTH.pack(len(content)) + content


def _check_groups(
    connection: DriverConnection,
    begun: _Begun,
    topic: str,
    messages: list[NewMessage | Mapping[str, Any]],
) -> None:
    """Refuses a message without a message group, which a FIFO topic needs of each."""
    for index, message in enumerate(messages):
        given = message.message_group if isinstance(message, NewMessage) else message.get("message_group")
        if given is None:
            try:
                fetch(connection, _JUDGE_GROUP, (topic, begun.message_type))
            except DueWheelError as error:
                raise error.at(index) from error


def _queues_of_groups(
    connection: DriverConnection, queue_count: int, messages: list[NewMessage | Mapping[str, Any]]
) -> dict[str, int]:
    """The queue of each message group: a group stays in one queue, which is what keeps its order."""
    groups = {
        message.message_group if isinstance(message, NewMessage) else message.get("message_group")
        for message in messages
    }
    groups.discard(None)
    for group in groups:
        check_text(group, "message_group", optional=True)
    return dict(fetch(connection, _GROUP_QUEUES, (queue_count, list(groups))))


def _to_announce(begun: _Begun, deliveries: list[int]) -> int | None:
    """The first instant the wheel would miss if it were not told; None, and no NOTIFY, if none."""
    quiet_until = begun.quiet_until
    soon = (
        instant
        for instant in deliveries
        if instant < begun.notify_before and (quiet_until is None or instant > quiet_until)
    )
    return min(soon, default=None)


def _parameters(topic: str, message: NewMessage, now: datetime | None) -> tuple[object, ...]:
    """The parameters of the SQL function send, in order, with types that Postgres can take."""
    check_text(message.key, "key", optional=True)
    check_text(message.tag, "tag", optional=True)
    check_text(message.message_group, "message_group", optional=True)
    check_text(message.idempotency_key, "idempotency_key", optional=True)
    return (
        topic,
        psycopg2.Binary(to_bytes(message.body)),
        *when(message.delay, message.deliver_at, message.delay_level),
        message.key,
        message.tag,
        properties_to_json(message.properties),
        message.message_group,
        message.idempotency_key,
        named(OnConflict, message.on_conflict, "on_conflict").value,
        now,
    )


def when(delay: Any, deliver_at: Any, level: object) -> tuple[timedelta | None, datetime | None, int | None]:
    """The three ways to say when, as Postgres can take them."""
    if level is not None:
        if type(level) is not int:
            raise InvalidArgument(
                f"delay_level is a {type(level).__name__}: give a whole number, "
                "0 for no delay, 1 for the first level"
            )
        level = max(-_HIGHEST_LEVEL - 1, min(level, _HIGHEST_LEVEL))
    return (
        None if delay is None else _bounded(delay),
        None if deliver_at is None else to_datetime(deliver_at),
        level,
    )


def _bounded(delay: timedelta) -> timedelta:
    return max(-_LONGEST_DELAY, min(to_span(delay), _LONGEST_DELAY))


def _receipt(row: tuple[Any, ...]) -> SendReceipt:
    identity, deliver_at, outcome = row
    return SendReceipt(identity, to_datetime(deliver_at), SendOutcome(outcome))
