"""The baselines: tables that a user would write.

`PLAIN` is the physical limit, a table with only the columns and primary key of duewheel's messages. COPY is
the fastest way into it, a keyset page the fastest ordered way out, and a one-row INSERT in autocommit mode
the cheapest durable write: one round trip, one flush of the log.

`LEASED` is a status table worked with FOR UPDATE SKIP LOCKED. The claim is committed before the work and the
completion after it, because a lease needs both. Finished rows stay in the table with their status, as
duewheel keeps acked messages until retention ends. A partial index holds only waiting rows, autovacuum is set
to follow a busy queue, and every step is one statement in autocommit mode. The lookup of claims that ran out
is left out, index and all, in this baseline's favour.

`TEN_MINUTES` is the obvious first table: a status, a due instant, a JSON body, and a partial index on pending
rows.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from struct import Struct
from typing import Any

from psycopg2.extensions import connection as Connection  # noqa: N812 - it is a class
from psycopg2.extras import execute_values

from benchmarks.messages import Body, Order, json_body, now, random_body

PLAIN = """
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
PLAIN_COPY = "COPY plain (topic_id, queue, deliver_at, seq, born_at, key, body) FROM STDIN (FORMAT binary)"
PLAIN_INSERT = """
INSERT INTO plain (topic_id, queue, deliver_at, seq, born_at, body) VALUES (%s, %s, %s, %s, %s, %s)
"""
PLAIN_PAGE = """
SELECT topic_id, queue, deliver_at, seq, born_at, asked_at, tag, key, properties, message_group, body
  FROM plain
 WHERE (topic_id, queue, deliver_at, seq) > (%s, %s, %s, %s)
 ORDER BY topic_id, queue, deliver_at, seq
 LIMIT %s
"""
TOPIC_ID = 1
QUEUES = 4

# COPY's binary form costs the least on both sides of the connection.
_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TRAILER = b"\xff\xff"
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
#: Number of columns, then each value after its length: topic, queue, deliver_at, seq, born_at, and the key's
#: length, -1 for none.
_ROW = Struct(">hiiihiqiqiqi")
_LENGTH = Struct(">i")


def execute(connection: Connection, statement: str, *parameters: object) -> None:
    """Run a statement that has no answer."""
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters or None)


def plain_copy(connection: Connection, orders: Sequence[Order], *, with_key: bool = False) -> None:
    """Write `orders` into the plain table in one COPY, which in autocommit mode is one transaction."""
    born = _microseconds(now())
    rows = [_HEADER]
    for order in orders:
        key, body = order.key.encode() if with_key else b"", order.body
        rows.append(
            _ROW.pack(
                7, 4, TOPIC_ID, 2, order.number % QUEUES, 8, _microseconds(order.due_at), 8, order.number,
                8, born, len(key) if with_key else -1,
            )
            + key
            + _LENGTH.pack(len(body))
            + body
        )  # fmt: skip
    rows.append(_TRAILER)
    with connection.cursor() as cursor:
        cursor.copy_expert(PLAIN_COPY, io.BytesIO(b"".join(rows)), size=1 << 20)


def _microseconds(instant: datetime) -> int:
    """Microseconds since 2000, as Postgres holds an instant."""
    since = instant - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def plain_insert(connection: Connection, order: Order) -> None:
    """Write one row; in autocommit mode this is one round trip and one commit."""
    row = (TOPIC_ID, order.number % QUEUES, order.due_at, order.number, now(), order.body)
    execute(connection, PLAIN_INSERT, *row)


def plain_pages(connection: Connection, size: int) -> Iterator[list[tuple[Any, ...]]]:
    """All rows of the plain table in key order, `size` at a time."""
    position: tuple[Any, ...] = (TOPIC_ID, -1, "-infinity", 0)
    while True:
        with connection.cursor() as cursor:
            cursor.execute(PLAIN_PAGE, (*position, size))
            rows = cursor.fetchall()
        if not rows:
            return
        yield rows
        position = rows[-1][:4]


@dataclass(frozen=True)
class Table:
    """A queue in a table: its statements, how it is loaded in bulk, and what bodies it has.

    A claim returns rows that begin with id and due instant and end with the body. `look` is what duewheel's
    handler does with a body: it looks at it, or decodes it as psycopg2 does for the table's.
    """

    name: str
    create: str
    insert_many: Callable[[Connection, Sequence[Order]], None]
    claim_due: str
    complete_claimed: str
    body: Body
    look: Callable[[bytes], object]

    def claim(self, connection: Connection, size: int) -> list[tuple[Any, ...]]:
        """Claim up to `size` due rows and commit; empty when nothing is due."""
        with connection.cursor() as cursor:
            cursor.execute(self.claim_due, (size,))
            return cursor.fetchall()

    def complete(self, connection: Connection, rows: list[tuple[Any, ...]]) -> None:
        """Mark claimed `rows` as done and commit."""
        execute(connection, self.complete_claimed, [row[0] for row in rows])

    def work(self, connection: Connection, size: int, batches: int) -> int:
        """Claim and complete `batches` batches of `size`; returns how many rows that were."""
        done = 0
        for _ in range(batches):
            rows = self.claim(connection, size)
            list(map(len, [row[-1] for row in rows]))
            self.complete(connection, rows)
            done += len(rows)
        return done


def _copy_leased(connection: Connection, orders: Sequence[Order]) -> None:
    lines = [f"{order.due_at.isoformat()}\t\\\\x{order.body.hex()}\n" for order in orders]
    with connection.cursor() as cursor:
        cursor.copy_expert("COPY job (due_at, body) FROM STDIN", io.StringIO("".join(lines)))


def _insert_ten_minutes(connection: Connection, orders: Sequence[Order]) -> None:
    rows = [(order.due_at, order.body.decode()) for order in orders]
    if len(rows) == 1:
        execute(connection, "INSERT INTO job (due_at, body) VALUES (%s, %s)", *rows[0])
        return
    with connection.cursor() as cursor:
        execute_values(cursor, "INSERT INTO job (due_at, body) VALUES %s", rows, page_size=len(rows))


LEASED = Table(
    "SKIP LOCKED table",
    """
    CREATE TABLE job (
        id            bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        status        smallint    NOT NULL DEFAULT 0,
        attempt       integer     NOT NULL DEFAULT 0,
        due_at        timestamptz NOT NULL,
        claimed_until timestamptz,
        born_at       timestamptz NOT NULL DEFAULT now(),
        tag           text,
        key           text,
        properties    jsonb,
        message_group text,
        body          bytea       NOT NULL
    ) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
    CREATE INDEX job_waiting ON job (due_at, id) WHERE status = 0;
    """,
    _copy_leased,
    """
    WITH next AS (
        SELECT id FROM job
         WHERE status = 0 AND due_at <= now()
         ORDER BY due_at, id
         LIMIT %s
           FOR UPDATE SKIP LOCKED
    )
    UPDATE job
       SET status = 1, attempt = attempt + 1, claimed_until = now() + interval '60 s'
      FROM next
     WHERE job.id = next.id
    RETURNING job.id, job.due_at, job.attempt, job.claimed_until, job.born_at, job.tag, job.key,
              job.properties, job.message_group, job.body
    """,
    "UPDATE job SET status = 2 WHERE id = ANY (%s) AND status = 1",
    random_body,
    len,
)

TEN_MINUTES = Table(
    "the table",
    """
    CREATE TABLE job (
        id         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        status     text        NOT NULL DEFAULT 'pending',
        due_at     timestamptz NOT NULL,
        body       jsonb       NOT NULL,
        created_at timestamptz NOT NULL DEFAULT now(),
        done_at    timestamptz
    );
    CREATE INDEX job_pending ON job (due_at) WHERE status = 'pending';
    """,
    _insert_ten_minutes,
    """
    UPDATE job SET status = 'claimed'
     WHERE id IN (
        SELECT id FROM job
         WHERE status = 'pending' AND due_at <= now()
         ORDER BY due_at
         LIMIT %s
           FOR UPDATE SKIP LOCKED)
    RETURNING id, due_at, body
    """,
    "UPDATE job SET status = 'done', done_at = now() WHERE id = ANY (%s)",
    json_body,
    json.loads,
)
