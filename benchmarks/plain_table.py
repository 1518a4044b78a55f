"""Baseline (a), the physical limit: a plain table with the same columns and primary key, and nothing else.

COPY is the fastest way into Postgres through this driver, a keyset page the fastest ordered way out, and a
one-row INSERT in autocommit mode the cheapest durable write: one round trip, one flush of the log.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from struct import Struct
from typing import Any

from psycopg2.extensions import connection as Connection  # noqa: N812 - it is a class

from benchmarks.messages import Order

QUEUES = 4

CREATE = """
CREATE TABLE plain (
    topic_id      integer     NOT NULL,
    queue         smallint    NOT NULL,
    deliver_at    timestamptz NOT NULL,
    seq           bigint      NOT NULL,
    born_at       timestamptz NOT NULL,
    asked_at      timestamptz,
    tag           text,
    key           text,
    properties    jsonb,
    message_group text,
    body          bytea       NOT NULL,
    PRIMARY KEY (topic_id, queue, deliver_at, seq)
)
"""

COPY = "COPY plain (topic_id, queue, deliver_at, seq, born_at, key, body) FROM STDIN (FORMAT binary)"

INSERT = """
INSERT INTO plain (topic_id, queue, deliver_at, seq, born_at, body) VALUES (%s, %s, %s, %s, %s, %s)
"""

PAGE = """
SELECT topic_id, queue, deliver_at, seq, born_at, asked_at, tag, key, properties, message_group, body
  FROM plain
 WHERE (topic_id, queue, deliver_at, seq) > (%s, %s, %s, %s)
 ORDER BY topic_id, queue, deliver_at, seq
 LIMIT %s
"""

TOPIC_ID = 1

# COPY's binary form costs the least on both sides of the connection.
_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TRAILER = b"\xff\xff"
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
#: Number of columns, then each value behind its length: topic, queue, deliver_at, seq, born_at, and the key's
#: length ...
_KEYED = Struct(">hiiihiqiqiqi")
#: ... or no key, and the length of the body.
_PLAIN = Struct(">hiiihiqiqiqii")
_LENGTH = Struct(">i")


def create(connection: Connection) -> None:
    """Make the empty table."""
    with connection.cursor() as cursor:
        cursor.execute(CREATE)


def copy(
    connection: Connection, orders: Iterable[Order], *, born_at: datetime, with_key: bool = False
) -> None:
    """Write `orders` in one COPY, which in autocommit mode is one transaction."""
    born = _microseconds(born_at)
    rows = [_HEADER]
    if with_key:
        for order in orders:
            key, body = order.key.encode(), order.body
            rows.append(
                _KEYED.pack(
                    7, 4, TOPIC_ID, 2, order.number % QUEUES, 8, _microseconds(order.due_at), 8, order.number,
                    8, born, len(key),
                )
                + key
                + _LENGTH.pack(len(body))
                + body
            )  # fmt: skip
    else:
        for order in orders:
            body = order.body
            rows.append(
                _PLAIN.pack(
                    7, 4, TOPIC_ID, 2, order.number % QUEUES, 8, _microseconds(order.due_at), 8, order.number,
                    8, born, -1, len(body),
                )
                + body
            )  # fmt: skip
    rows.append(_TRAILER)
    with connection.cursor() as cursor:
        cursor.copy_expert(COPY, io.BytesIO(b"".join(rows)), size=1 << 20)


def _microseconds(instant: datetime) -> int:
    """Microseconds since 2000, as Postgres holds an instant."""
    since = instant - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def insert(connection: Connection, order: Order, *, born_at: datetime) -> None:
    """Write one row; in autocommit mode this is one round trip and one commit."""
    with connection.cursor() as cursor:
        cursor.execute(
            INSERT,
            (TOPIC_ID, order.number % QUEUES, order.due_at, order.number, born_at, order.body),
        )


def pages(
    connection: Connection, *, size: int, after: Sequence[Any] | None = None
) -> Iterable[list[tuple[Any, ...]]]:
    """All rows in key order, `size` at a time, from behind the key `after` (all rows if None)."""
    position = tuple(after) if after is not None else (TOPIC_ID, -1, "-infinity", 0)
    while True:
        with connection.cursor() as cursor:
            cursor.execute(PAGE, (*position, size))
            rows = cursor.fetchall()
        if not rows:
            return
        yield rows
        position = rows[-1][:4]
