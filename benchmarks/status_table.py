"""Baseline (b), as a user would write it: a status table worked with FOR UPDATE SKIP LOCKED.

The claim is committed before the work and the completion after it, because a lease needs both: a claim held
in an open transaction dies with the connection, but so does everything else that waits for it. Finished rows
stay in the table with their status, as duewheel keeps acked messages until retention ends. A partial index
holds only what waits, autovacuum is set to follow a busy queue, and every step is one statement in autocommit
mode. The look-up of claims that ran out is left out, index and all, in this baseline's favour.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from psycopg2.extensions import connection as Connection  # noqa: N812 - it is a class

from benchmarks.messages import Order, handle

CREATE = """
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
"""

COPY = "COPY job (due_at, born_at, key, body) FROM STDIN"

CLAIM = """
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
RETURNING job.id, job.attempt, job.due_at, job.claimed_until, job.born_at, job.tag, job.key, job.properties,
          job.message_group, job.body
"""

COMPLETE = "UPDATE job SET status = 2 WHERE id = ANY (%s) AND status = 1"

DELETE = "DELETE FROM job WHERE id = ANY (%s) AND status = 1"


def create(connection: Connection) -> None:
    """Make the empty table and its index."""
    with connection.cursor() as cursor:
        cursor.execute(CREATE)


def copy(connection: Connection, orders: Iterable[Order], *, born_at: datetime) -> None:
    """Load `orders` in one COPY."""
    born = born_at.isoformat()
    lines = [f"{order.due_at.isoformat()}\t{born}\t\\N\t\\\\x{order.body.hex()}\n" for order in orders]
    with connection.cursor() as cursor:
        cursor.copy_expert(COPY, io.StringIO("".join(lines)))


def claim(connection: Connection, *, size: int) -> list[tuple[Any, ...]]:
    """Claim up to `size` due rows and commit; empty when nothing is due."""
    with connection.cursor() as cursor:
        cursor.execute(CLAIM, (size,))
        return cursor.fetchall()


def complete(connection: Connection, rows: list[tuple[Any, ...]]) -> None:
    """Mark claimed `rows` as done and commit."""
    with connection.cursor() as cursor:
        cursor.execute(COMPLETE, ([row[0] for row in rows],))


def work(connection: Connection, *, size: int, batches: int) -> int:
    """Claim and complete `batches` batches of `size`; returns how many rows that were."""
    done = 0
    for _ in range(batches):
        rows = claim(connection, size=size)
        handle(row[-1] for row in rows)
        complete(connection, rows)
        done += len(rows)
    return done


def work_lean(claims: Connection, connection: Connection, *, size: int, batches: int) -> int:
    """The same at the least cost: `claims` does not wait for the disk, and finished rows are deleted."""
    done = 0
    for _ in range(batches):
        rows = claim(claims, size=size)
        handle(row[-1] for row in rows)
        with connection.cursor() as cursor:
            cursor.execute(DELETE, ([row[0] for row in rows],))
        done += len(rows)
    return done
