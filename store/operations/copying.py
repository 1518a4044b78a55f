"""Sending many messages by one COPY.

The transaction takes its id and then reads the clock (``duewheel.begin_copy``), and then copies the rows. A
second COPY has the messages without a slot yet, due in weeks or years. Nothing is written before every
message has been checked. Python only searches for values that may be wrong; the SQL functions of a single
send check those, so there is one wording and one truth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from io import BytesIO
from typing import Any, overload

import psycopg2
from psycopg2.extensions import encodings

from duewheel.store.database.connections import DriverConnection, DriverCursor, fetch
from duewheel.store.operations.copy_rows import COPY, CopyRows, json_column, text_column
from duewheel.store.values.bodies import MAX_BODY_BYTES, check_text, properties_to_json, to_bytes
from duewheel.store.values.content_types import (
    CONTENT_TYPE,
    JSON,
    ONLY_JSON,
    ONLY_TEXT,
    TEXT,
    with_content_type,
)
from duewheel.store.values.delivery_time import bounded, when
from duewheel.store.values.errors import DueWheelError, InvalidArgument
from duewheel.store.values.instants import (
    EPOCH,
    from_microseconds,
    span_to_microseconds,
    to_microseconds,
)
from duewheel.store.values.messages import (
    GivenMessage,
    MessageType,
    NewMessage,
    SendOutcome,
    SendReceipt,
    message_id,
)

_BEGIN_COPY = """
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

_REPLACE = "select duewheel.replace_keys(%s, %s, %s, %s)"

_NOTIFY_DUE = "select duewheel.notify_due(%s, duewheel.from_unix_micros(%s))"

# The table of the existing slots, and the table of messages that are due after them.
_NEAR_TABLE = "duewheel.message"
_FAR_TABLE = "duewheel.far_message"

_NO_TEXT = text_column(None)
# The column content_type, as the SQL function content_type_mark has it.
_MARKS = {JSON: text_column(b"j"), TEXT: text_column(b"t")}
# The columns content_type, properties and message_group of most messages, by the identity of the properties.
_USUAL_PROPERTIES = {
    id(None): _NO_TEXT * 3,
    id(ONLY_JSON): _MARKS[JSON] + _NO_TEXT * 2,
    id(ONLY_TEXT): _MARKS[TEXT] + _NO_TEXT * 2,
}

# Properties that stay below the limit even though Postgres writes numbers differently.
_SURELY_SMALL = 4096


@dataclass(slots=True)
class Begun:
    """The answer of ``duewheel.begin_copy``; instants and spans in microseconds."""

    topic_id: int
    message_type: str
    queue_count: int
    first_seq: int
    now_us: int
    floor_us: int
    max_delay_us: int
    out_of_range: str
    quiet_until_us: int | None
    notify_before_us: int
    near_until_us: int
    released_to_us: int | None
    may_copy: bool


def begin(cursor: DriverCursor, topic: str, count: int, now: datetime | None) -> Begun:
    """Begin to send messages in this transaction, which takes its id and sequence numbers here.

    Args:
        cursor: of a transaction.
        topic: the topic's name.
        count: how many messages will be sent.
        now: the present instant; None is the database's clock.
    """
    block_count = (count + 65535) // 65536
    cursor.execute(_BEGIN_COPY, (topic, block_count, now))
    (row,) = cursor.fetchall()
    return Begun(*row)


def copy(
    connection: DriverConnection,
    cursor: DriverCursor,
    begun: Begun,
    topic: str,
    messages: list[GivenMessage],
    replaced: Mapping[int, str],
    now: datetime | None,
) -> Sequence[SendReceipt]:
    """Send the messages in the transaction that was begun.

    Args:
        connection, cursor: the transaction.
        begun: the answer of :func:`begin`.
        topic: the topic's name.
        messages: the messages to send.
        replaced: the keys whose waiting messages are recalled, by the places of the messages that replace
            them.
        now: the present instant; None is the database's clock.

    Raises:
        DueWheelError: a message is refused; the error has its index. Nothing was written.
    """
    rows = _rows(connection, begun, topic, messages)
    receipts = _Receipts(begun.topic_id, rows.queues, rows.deliveries_us, begun.first_seq)
    if replaced:
        ids = [
            message_id(begun.topic_id, rows.queues[place], rows.deliveries_us[place], begun.first_seq + place)
            for place in replaced
        ]
        waited = fetch(connection, _REPLACE, (begun.topic_id, list(replaced.values()), ids, now))
        keys = {key for (key,) in waited}
        receipts.replaced = {place for place, key in replaced.items() if key in keys}
    for table, copied in ((_NEAR_TABLE, rows.near()), (_FAR_TABLE, rows.far())):
        if copied:
            cursor.copy_expert(COPY.format(table=table), BytesIO(copied), size=len(copied))
    deliveries_us = rows.deliveries_us
    first_us = min(deliveries_us)
    if begun.released_to_us is not None and first_us <= begun.released_to_us:
        cursor.execute(_HOLD_BACK, (begun.topic_id, begun.released_to_us))
    due_us = _first_to_notify(begun, deliveries_us) if first_us < begun.notify_before_us else None
    if due_us is not None:
        cursor.execute(_NOTIFY_DUE, (begun.topic_id, due_us))
    return receipts


class _Receipts(Sequence[SendReceipt]):
    """The receipts of one COPY, made when they are looked at."""

    __slots__ = ("_deliver", "_first_seq", "_queues", "_topic_id", "replaced")

    def __init__(self, topic_id: int, queues: list[int], deliver: list[int], first_seq: int) -> None:
        self._topic_id = topic_id
        self._queues = queues
        self._deliver = deliver
        self._first_seq = first_seq
        #: The places of the messages that replaced a waiting message.
        self.replaced: set[int] = set()

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
        outcome = SendOutcome.REPLACED if index in self.replaced else SendOutcome.SENT
        return SendReceipt(identity, from_microseconds(deliver), outcome)

    def __repr__(self) -> str:
        return f"[{', '.join(map(repr, self))}]"


# The fields of a message that its row is made of, in the order in which _rows unpacks them. A plain tuple,
# because it is made for each message.
_Fields = tuple[Any, Any, Any, Any, Any, Any, Any, Any]


def _of_new_message(message: NewMessage) -> _Fields:
    return (
        message.body,
        message.deliver_at,
        message.delay,
        message.delay_level,
        message.key,
        message.tag,
        message.properties,
        message.message_group,
    )


def _of_mapping(message: Mapping[str, Any]) -> _Fields:
    get = message.get
    return (
        message["body"],
        get("deliver_at"),
        get("delay"),
        get("delay_level"),
        get("key"),
        get("tag"),
        get("properties"),
        get("message_group"),
    )


def _rows(connection: DriverConnection, begun: Begun, topic: str, messages: list[GivenMessage]) -> CopyRows:
    """The rows of all messages.

    This is the only loop of the store that runs once for each message of a send. It does little for the
    common case, and leaves the rest to the judge.
    """
    rows = CopyRows(
        topic_id=begun.topic_id,
        queue_count=begun.queue_count,
        first_seq=begun.first_seq,
        born_us=begun.now_us,
        floor_us=begun.floor_us,
        near_until_us=begun.near_until_us,
    )
    judge = _Judge(connection, begun, topic)
    if begun.message_type == MessageType.FIFO:
        _check_groups(connection, begun, topic, messages)
    group_queues: dict[str, int] = {}
    index = -1
    try:
        for index, message in enumerate(messages):  # noqa: B007 -- the error handler reads the index
            body, deliver_at, delay, level, key, tag, properties, group = (
                _of_new_message(message) if isinstance(message, NewMessage) else _of_mapping(message)
            )
            if type(body) is not bytes or len(body) > MAX_BODY_BYTES:
                properties = with_content_type(body, properties)
                body = to_bytes(body)
            asked_us = judge.asked_us(delay, deliver_at, level)
            content = judge.content(body, key, tag, properties, group)
            queue = None
            if group is not None:
                if not group_queues:
                    group_queues = _queues_of_groups(connection, begun.queue_count, messages)
                queue = group_queues[group]
            rows.add(asked_us, queue, content, body)
    except DueWheelError as error:
        raise error.at(index) from error
    return rows


class _Judge:
    """Searches for values that may be wrong, lets the database check them, and keeps the results."""

    def __init__(self, connection: DriverConnection, begun: Begun, topic: str) -> None:
        self._connection = connection
        self._now_us = begun.now_us
        # On a topic without delays every delay is checked.
        takes_delays = begun.message_type == MessageType.DELAY
        self._latest_us = begun.now_us + begun.max_delay_us if takes_delays else -(2**63)
        self._topic = topic
        self._codec = encodings[connection.encoding]
        self._levels: dict[int | None, int] = {}
        self._tags: dict[str | None, bytes] = {None: _NO_TEXT}

    def asked_us(self, delay: Any, deliver_at: Any, level: Any) -> int:
        """The instant a message asks for (Unix microseconds)."""
        if deliver_at is not None:
            if delay is not None or level is not None:
                return self._judged_us(delay, deliver_at, level)
            if type(deliver_at) is datetime and deliver_at.tzinfo is UTC:
                # Like to_microseconds, without the call.
                since = deliver_at - EPOCH
                asked_us = (since.days * 86400 + since.seconds) * 1_000_000 + since.microseconds
            else:
                asked_us = to_microseconds(deliver_at)
        elif delay is not None and level is None:
            asked_us = self._now_us + span_to_microseconds(bounded(delay))
        else:
            return self._of_level_us(delay, level)
        return asked_us if asked_us <= self._latest_us else self._judged_us(delay, deliver_at, level)

    def _of_level_us(self, delay: object, level: object) -> int:
        """The same for a delay level, or for a message without any time; asks once for each level."""
        if delay is not None or not (level is None or type(level) is int):
            return self._judged_us(delay, None, level)
        asked_us = self._levels.get(level)
        if asked_us is None:
            asked_us = self._levels[level] = self._judged_us(None, None, level)
        return asked_us

    def _judged_us(self, delay: object, deliver_at: object, level: object) -> int:
        """The same by the SQL function, whose errors it raises."""
        parameters = (self._now_us, *when(delay, deliver_at, level), self._topic)
        ((asked_us,),) = fetch(self._connection, _JUDGE_INSTANT, parameters)
        return int(asked_us)

    def content(self, body: bytes, key: Any, tag: Any, properties: Any, group: Any) -> bytes:
        """The columns tag, key, content_type, properties and message_group of a row."""
        usual = _USUAL_PROPERTIES.get(id(properties)) if group is None else None
        if usual is not None and (tag is None or type(tag) is str):
            tag_column = self._tags.get(tag)
            if tag_column is not None:
                if key is None:
                    return tag_column + _NO_TEXT + usual
                if type(key) is str and key.isascii() and 0 < len(key) < 256 and "\0" not in key:
                    return tag_column + text_column(key.encode()) + usual
        check_text(key, "key", optional=True)
        check_text(tag, "tag", optional=True)
        check_text(group, "message_group", optional=True)
        properties_json = properties_to_json(properties)
        if (
            tag not in self._tags
            or (key is not None and not 0 < len(key) <= 255)
            or (group is not None and not 0 < len(group) <= 255)
            or (properties_json is not None and len(properties_json) > _SURELY_SMALL)
        ):
            fetch(self._connection, _JUDGE_CONTENT, (psycopg2.Binary(body), key, tag, properties_json, group))
        if tag not in self._tags:
            self._tags[tag] = text_column(self._encoded(tag))
        mark = _NO_TEXT if properties is None else _MARKS.get(str(properties.get(CONTENT_TYPE)), _NO_TEXT)
        if mark is not _NO_TEXT:
            others = {name: value for name, value in properties.items() if name != CONTENT_TYPE}
            properties_json = properties_to_json(others) if others else None
        properties_column = json_column(self._encoded(properties_json))
        columns = text_column(self._encoded(key)), mark, properties_column, text_column(self._encoded(group))
        return self._tags[tag] + b"".join(columns)

    def _encoded(self, value: Any) -> bytes | None:
        try:
            return None if value is None else value.encode(self._codec)
        except UnicodeEncodeError as error:
            raise InvalidArgument(
                f"{value[:40]!r} cannot be written in the connection's client encoding {self._codec} "
                f"({error.reason}): use a connection with client_encoding UTF8"
            ) from None


def _check_groups(
    connection: DriverConnection,
    begun: Begun,
    topic: str,
    messages: list[GivenMessage],
) -> None:
    """Refuse a message without a message group, which every message of a FIFO topic needs."""
    for index, message in enumerate(messages):
        given = message.message_group if isinstance(message, NewMessage) else message.get("message_group")
        if given is None:
            try:
                fetch(connection, _JUDGE_GROUP, (topic, begun.message_type))
            except DueWheelError as error:
                raise error.at(index) from error


def _queues_of_groups(
    connection: DriverConnection, queue_count: int, messages: list[GivenMessage]
) -> dict[str, int]:
    """The queue of each message group: a group stays in one queue, which keeps its order."""
    groups = {
        message.message_group if isinstance(message, NewMessage) else message.get("message_group")
        for message in messages
    }
    groups.discard(None)
    for group in groups:
        check_text(group, "message_group", optional=True)
    return dict(fetch(connection, _GROUP_QUEUES, (queue_count, list(groups))))


def _first_to_notify(begun: Begun, deliveries_us: list[int]) -> int | None:
    """The first instant that the wheel would miss without a NOTIFY; None if it misses none."""
    quiet_until_us = begun.quiet_until_us
    soon = (
        deliver_us
        for deliver_us in deliveries_us
        if deliver_us < begun.notify_before_us and (quiet_until_us is None or deliver_us > quiet_until_us)
    )
    return min(soon, default=None)
