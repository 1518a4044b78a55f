"""Reading leased messages on an executor: Arrow batches straight from Postgres, never row by row.

A lease names its messages once and for all: messages that a tick released and a group leased neither change
nor go away while the lease is held. So a query for a lease yields the same rows however often it runs, in a
retried task or in two speculative copies at once. It needs neither a lock nor a transaction around it.

COPY sends the rows in binary form, and they are passed on batch by batch. The memory of a task depends on
``batch_bytes`` and not on the size of the lease. Postgres, the network and Spark work at the same time.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager

import adbc_driver_manager
import adbc_driver_postgresql
import pyarrow as pa

from duewheel.spark.arrow_connections import arrow_connection
from duewheel.spark.lease_partition import LeaseToRead
from duewheel.spark.message_batches import message_batch
from duewheel.spark.message_columns import ALL_COLUMNS, StreamHandle, query_columns
from duewheel.spark.statements import statement
from duewheel.store.values.errors import InvalidArgument, LeaseLost
from duewheel.store.values.numbers import counted

_READ_LEASE = statement("read_lease")
_ALL_PROPERTIES = "duewheel.all_properties(m.content_type, m.properties) as properties"
_CHECK_LEASES = statement("check_leases")


def read_leases(
    dsn: str,
    leases: tuple[LeaseToRead, ...],
    batch_bytes: int,
    columns: tuple[str, ...] = ALL_COLUMNS,
) -> Generator[pa.RecordBatch]:
    """Read leases over a connection that only they use.

    Args:
        dsn: libpq string or URL.
        leases: the leases to read.
        batch_bytes: about how large a batch may become.
        columns: the columns wanted; the others do not leave the database.

    Yields:
        Batches of :func:`~duewheel.spark.message_batches.arrow_schema`.

    Raises:
        LeaseLost: a lease has ended or was given back, so its messages may be with others; or retention has
            dropped some of them.
    """
    if not leases:
        return
    with arrow_connection(dsn) as connection:
        _check(connection, leases)
        for lease in leases:
            yield from _read(connection, lease, batch_bytes, columns)


def _check(connection: adbc_driver_manager.AdbcConnection, leases: tuple[LeaseToRead, ...]) -> None:
    """Refuse leases that have ended: a task that Spark runs late must not work on messages that others
    hold."""
    handles = ", ".join(
        "({}, {}, {}, {}, {}::bigint, {}::bigint)".format(place, *lease.handle.split("."))
        for place, lease in enumerate(leases)
    )
    with selected(connection, _CHECK_LEASES.format(leases=handles), ["n", "queue", "state"]) as rows:
        for row in rows.read_all().to_pylist():
            raise LeaseLost(
                f"Lease {row['n']} on queue {row['queue']} of topic {leases[0].topic} has ended "
                f"({row['state']}): its messages may be with others. Take a new batch, and keep it alive."
            )


def _read(
    connection: adbc_driver_manager.AdbcConnection,
    lease: LeaseToRead,
    batch_bytes: int,
    columns: tuple[str, ...],
) -> Iterator[pa.RecordBatch]:
    count = 0
    origin = (lease.topic_id, lease.queue, lease.topic, lease.handle)
    for batch in queried(connection, lease.query, origin, batch_bytes, columns):
        count += batch.num_rows
        yield batch
    if count != lease.count:
        raise LeaseLost(
            f"Lease {lease.n} on queue {lease.queue} of topic {lease.topic} covers "
            f"{counted(lease.count, 'message')}, but only {count} still exist: the lease ended long ago and "
            "retention has dropped its messages. Take a new lease."
        )


def queried(
    connection: adbc_driver_manager.AdbcConnection,
    query: str,
    origin: tuple[int, int, str, str | StreamHandle],
    batch_bytes: int,
    columns: tuple[str, ...],
) -> Iterator[pa.RecordBatch]:
    """Run a query for messages of one queue.

    Args:
        connection: where to run it.
        query: a SELECT of the columns of ``duewheel.lease_rows``.
        origin: number of the topic, queue, name of the topic the messages were sent to, and the beginning of
            their receipt handles, or the stream that reads them.
        batch_bytes: about how large a batch may become.
        columns: the columns wanted.

    Yields:
        Batches of :func:`~duewheel.spark.message_batches.arrow_schema`.
    """
    names = query_columns(columns)
    selects = ", ".join(_ALL_PROPERTIES if name == "properties" else f"m.{name}" for name in names)
    text = _READ_LEASE.format(columns=selects, lease_query=query)
    with selected(connection, text, names, batch_bytes) as rows:
        for batch in rows:
            yield message_batch(batch, *origin, columns)


@contextmanager
def selected(
    connection: adbc_driver_manager.AdbcConnection,
    query: str,
    names: list[str],
    batch_bytes: int | None = None,
) -> Iterator[pa.RecordBatchReader]:
    """The rows of a query, readable until the block ends.

    The driver asks for the columns of a query in one message and for its rows in another. A pooler that hands
    out sessions by transaction may send the two to different sessions. The columns are then those of another
    client's query.

    Args:
        connection: where to run it.
        query: a SELECT.
        names: what its columns are called.
        batch_bytes: about how large a batch may become; None is the driver's own default.

    Raises:
        InvalidArgument: the columns belong to another query. No row was read.
    """
    with adbc_driver_manager.AdbcStatement(connection) as statement:
        if batch_bytes is not None:
            statement.set_options(
                **{adbc_driver_postgresql.StatementOptions.BATCH_SIZE_HINT_BYTES.value: str(batch_bytes)}
            )
        statement.set_sql_query(query)
        stream, _ = statement.execute_query()
        with pa.RecordBatchReader.from_stream(stream) as rows:
            if rows.schema.names != names:
                raise InvalidArgument(
                    f"the server answers with the columns {', '.join(rows.schema.names)} of another "
                    f"session's query, instead of {', '.join(names)}: the dsn leads to a pooler that hands "
                    "out sessions by transaction, such as PgBouncer. Give Spark the database's own address, "
                    "or one that is pooled by session"
                )
            yield rows
