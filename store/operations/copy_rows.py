"""The rows of new messages in the binary form of Postgres's COPY.

In COPY's binary form each value follows its length, and a length of -1 is null. Numbers, instants and the
null columns of most messages are packed at once. So every message costs one ``pack`` of a known layout and
one concatenation. Bodies are not copied until the rows are joined.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import itemgetter
from struct import Struct

#: The statement whose rows these are.
COPY = """
copy {table}
    (topic_id, queue, deliver_at, seq, born_at, asked_at, tag, key, content_type, properties, message_group,
     body)
from stdin (format binary)
"""
_COLUMNS = COPY.count(",") + 1
_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TRAILER = b"\xff\xff"
# Microseconds from Unix's epoch to the one Postgres counts from, 2000-01-01.
_POSTGRES_EPOCH_US = 946_684_800_000_000

_LENGTH = Struct(">i")
_TIMESTAMP = Struct(">iq")
_pack_length = _LENGTH.pack
_NULL = _pack_length(-1)
# Number of columns, topic_id after its length, and the length of queue; the same in all rows.
_HEAD = Struct(">hiii")

# A row: its instant, all columns up to the body's length, and the body.
_Row = tuple[int, bytes, bytes]
_INSTANT = itemgetter(0)


@lru_cache(maxsize=1024)
def _packer(size: int) -> Callable[..., bytes]:
    """Packs a row up to its body, if the columns between seq and the body take so many bytes.

    Its arguments are _HEAD, queue, deliver_at and seq, the last two after their lengths, then those columns
    and the body's length.
    """
    return Struct(f">{_HEAD.size}shiqiq{size}si").pack


def text_column(text: bytes | None) -> bytes:
    """A text, in the encoding of the connection, as a column of a row; None is null.

    Example:
        >>> text_column(b"4711"), text_column(None)
        (b'\\x00\\x00\\x00\\x044711', b'\\xff\\xff\\xff\\xff')
    """
    return _NULL if text is None else _pack_length(len(text)) + text


def json_column(text: bytes | None) -> bytes:
    """A JSON text as a column of type jsonb, whose binary form is its version, 1, and the text."""
    return _NULL if text is None else text_column(b"\1" + text)


class CopyRows:
    """The rows of the messages of one send, which are added one by one.

    Attributes:
        deliveries_us: the delivery instant of each message, in the order of adding (Unix microseconds).
        queues: the queue of each message, in the same order.

    Args:
        topic_id: the topic.
        queue_count: how many queues it has.
        first_seq: the sequence number of the first message; the numbers of the others follow.
        born_us: when the messages are sent (Unix microseconds).
        floor_us: no message is delivered before it.
        near_until_us: messages due before it are stored in the slots, later ones as far messages.
    """

    __slots__ = (
        "_born",
        "_far",
        "_floor_us",
        "_head",
        "_near",
        "_near_until_us",
        "_next_seq",
        "_queue_count",
        "deliveries_us",
        "queues",
    )

    def __init__(
        self,
        *,
        topic_id: int,
        queue_count: int,
        first_seq: int,
        born_us: int,
        floor_us: int,
        near_until_us: int,
    ) -> None:
        self.deliveries_us: list[int] = []
        self.queues: list[int] = []
        self._near: list[_Row] = []
        self._far: list[_Row] = []
        self._next_seq = first_seq
        self._queue_count = queue_count
        self._floor_us = floor_us
        self._near_until_us = near_until_us
        self._head = _HEAD.pack(_COLUMNS, 4, topic_id, 2)
        self._born = _TIMESTAMP.pack(8, born_us - _POSTGRES_EPOCH_US) + _NULL

    def add(self, asked_us: int, queue: int | None, content: bytes, body: bytes) -> None:
        """Add the row of the next message.

        Args:
            asked_us: the instant that the sender asks for (Unix microseconds).
            queue: the queue of its message group; None is any.
            content: its columns tag, key, content_type, properties and message_group.
            body: its body.
        """
        seq = self._next_seq
        self._next_seq = seq + 1
        if queue is None:
            queue = seq % self._queue_count
        if asked_us >= self._floor_us:
            deliver_us, born_and_asked = asked_us, self._born
        else:
            deliver_us = self._floor_us
            born_and_asked = self._born[:-4] + _TIMESTAMP.pack(8, asked_us - _POSTGRES_EPOCH_US)
        rest = born_and_asked + content
        pack = _packer(len(rest))
        columns = pack(self._head, queue, 8, deliver_us - _POSTGRES_EPOCH_US, 8, seq, rest, len(body))
        rows = self._near if deliver_us < self._near_until_us else self._far
        rows.append((deliver_us, columns, body))
        self.deliveries_us.append(deliver_us)
        self.queues.append(queue)

    def near(self) -> bytes:
        """The COPY of the messages for the slots; empty if there are none."""
        return _joined(self._near)

    def far(self) -> bytes:
        """The COPY of the far messages; empty if there are none."""
        return _joined(self._far)


def _joined(rows: Sequence[_Row]) -> bytes:
    """The whole COPY. Rows in the order of their instants fill the pages of an index one after another."""
    if not rows:
        return b""
    in_order = sorted(rows, key=_INSTANT)
    pieces = [piece for _, columns, body in in_order for piece in (columns, body)]
    return b"".join((_HEADER, *pieces, _TRAILER))
