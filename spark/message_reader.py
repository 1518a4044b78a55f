"""Reading messages on an executor: Arrow batches straight from Postgres, never row by row.

A lease names its messages once and for all: messages that a tick released and a group leased neither change
nor go away while the lease is held. So a query for a lease yields the same rows however often it runs, in a
retried task or in two speculative copies at once. It needs neither a lock nor a transaction around it.

A lease has 10 000 messages at most, and messages are seldom stored in the order in which they are due. Read
one by one, the leases of a large part would visit each page of the table again and again. So adjacent leases,
a run, are read by one query.

COPY sends the rows in binary form, and they are passed on batch by batch. The memory of a task depends on
``batch_bytes`` and not on the size of the lease. Postgres, the network and Spark work at the same time.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Protocol

import adbc_driver_manager
import adbc_driver_postgresql
import pyarrow as pa

from duewheel.spark.lease_partition import LeaseToRead
from duewheel.spark.message_batches import LeaseHandles, message_batch
from duewheel.spark.message_columns import ALL_COLUMNS, StreamHandle, query_columns
from duewheel.spark.statements import statement
from duewheel.store.values import tags as tag_expressions
from duewheel.store.values.errors import InvalidArgument, LeaseLost
from duewheel.store.values.numbers import counted

if TYPE_CHECKING:
    from duewheel.spark.read_options import UnleasedRead

_PLAN_FOR_MANY = statement("plan_for_many")
_READ_LEASE = statement("read_lease")
_ALL_PROPERTIES = "duewheel.all_properties(m.content_type, m.properties) as properties"
_CHECK_LEASES = statement("check_leases")
_LEASE_RUNS = statement("lease_runs")
_STREAM_QUERY = statement("stream_query")


@contextmanager
def arrow_connection(dsn: str) -> Iterator[adbc_driver_manager.AdbcConnection]:
    """A connection that carries rows as Arrow, and is closed when the block ends.

    Raises:
        adbc_driver_manager.Error: the database cannot be reached.

    Example::

        with arrow_connection(dsn) as connection, AdbcStatement(connection) as statement:
            statement.set_sql_query("select 1")
    """
    # A process that was forked sets up its own connections: the driver does not say what it shares.
    with adbc_driver_manager.AdbcConnection(_database(dsn, os.getpid())) as connection:
        yield connection


@lru_cache(maxsize=1)
def _database(dsn: str, _process_id: int) -> adbc_driver_manager.AdbcDatabase:
    # The driver now reads all types and columns of the database, those of the user's tables too. So a process
    # does this once. What it has read stays right: messages have columns of Postgres's own types only.
    database: adbc_driver_manager.AdbcDatabase = adbc_driver_postgresql.connect(dsn)
    return database


def read_leases(
    dsn: str,
    leases: tuple[LeaseToRead, ...],
    batch_bytes: int,
    columns: tuple[str, ...] = ALL_COLUMNS,
) -> Generator[pa.RecordBatch]:
    """Read leases of one group over a connection that only they use.

    Args:
        dsn: libpq string or URL.
        leases: the leases to read.
        batch_bytes: about how large a batch may become.
        columns: the columns wanted; the others do not leave the database.

    Raises:
        LeaseLost: a lease has ended or was given back, so its messages may be with others; or retention has
            dropped some of them.
    """
    if not leases:
        return
    with arrow_connection(dsn) as connection:
        _check(connection, leases)
        runs = lease_runs(connection, leases)
        _plan_for_many(connection)
        for run, handles, query in runs:
            first, count = run[0], 0
            origin = (first.topic_id, first.queue, first.topic, handles)
            for batch in _queried(connection, query, origin, batch_bytes, columns):
                count += batch.num_rows
                yield batch
            expected = sum(lease.count for lease in run)
            if count != expected:
                named = f"lease {first.n}" if len(run) == 1 else f"leases {first.n} to {run[-1].n}"
                raise LeaseLost(
                    f"of the {counted(expected, 'message')} of {named} on queue {first.queue} of topic "
                    f"{first.topic}, only {count} still exist: the lease ended long ago, and retention has "
                    "dropped its messages. Take a new lease."
                )


def _check(connection: adbc_driver_manager.AdbcConnection, leases: Sequence[LeaseToRead]) -> None:
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


def lease_runs(
    connection: adbc_driver_manager.AdbcConnection, leases: Sequence[LeaseToRead]
) -> list[tuple[list[LeaseToRead], LeaseHandles, str]]:
    """Leases of one group as runs of adjacent ones: the leases of each run, the receipt handles of their
    messages, and the SELECT that yields exactly these messages."""
    query = _LEASE_RUNS.format(
        group_id=leases[0].handle.partition(".")[0],
        topic_ids=", ".join(str(lease.topic_id) for lease in leases),
        queues=", ".join(str(lease.queue) for lease in leases),
        ns=", ".join(str(lease.n) for lease in leases),
    )
    with selected(connection, query, ["end_micros", "end_seqs", "query"]) as rows:
        found = rows.read_all().to_pylist()
    left = iter(leases)
    runs = []
    for row in found:
        run = list(islice(left, len(row["end_seqs"])))
        query = row["query"]
        answered = ", ".join(str(seq) for lease in run for seq in lease.answered)
        if answered:
            query = f"select * from ({query}) m where m.seq <> all (array[{answered}]::bigint[])"
        handles = LeaseHandles([lease.handle for lease in run], row["end_micros"], row["end_seqs"])
        runs.append((run, handles, query))
    return runs


class PlaceOfQueue(Protocol):
    """A range of messages, as far as it says where they are."""

    @property
    def topic(self) -> str: ...
    @property
    def topic_id(self) -> int: ...
    @property
    def queue(self) -> int: ...


def read_unleased(
    options: UnleasedRead,
    columns: tuple[str, ...],
    place: PlaceOfQueue,
    places: Sequence[int | None],
    handle: StreamHandle | None = None,
) -> Iterator[pa.RecordBatch]:
    """Read the messages of a range that the options choose, for a stream or for a look.

    Args:
        options: the address, tags, filter and the size of a batch.
        columns: the columns wanted.
        place: the topic and the queue where the messages are.
        places: where the range begins and ends, in the order of ``duewheel.stream_query``.
        handle: the stream that reads them, which may reject them; None for a look.
    """
    tags = tag_expressions.parse(options.tags)
    given = [
        *("null" if number is None else str(number) for number in (place.topic_id, place.queue, *places)),
        "null" if tags is None else "array[" + ", ".join(_literal(tag) for tag in tags) + "]",
        _literal(options.filter),
    ]
    arguments = ", ".join(given)
    call = _literal(f"select * from duewheel.stream_rows({arguments})")
    # Without a lease nothing can be answered: an ack with such a handle is refused.
    looked = LeaseHandles([f"0.{place.topic_id}.{place.queue}.0.0"])
    origin = (place.topic_id, place.queue, place.topic, handle or looked)
    with arrow_connection(options.dsn) as connection:
        with selected(connection, _STREAM_QUERY.format(arguments=arguments, call=call), ["query"]) as rows:
            (row,) = rows.read_all().to_pylist()
        _plan_for_many(connection)
        yield from _queried(connection, row["query"], origin, options.batch_bytes, columns)


def _literal(value: str | None) -> str:
    if value is None:
        return "null"
    # A worker that reads leases need not load it.
    from psycopg2.extensions import QuotedString

    quoted = QuotedString(value)
    quoted.encoding = "utf8"
    return bytes(quoted.getquoted()).decode()


def _plan_for_many(connection: adbc_driver_manager.AdbcConnection) -> None:
    with adbc_driver_manager.AdbcStatement(connection) as setting:
        setting.set_sql_query(_PLAN_FOR_MANY)
        setting.execute_update()


def _queried(
    connection: adbc_driver_manager.AdbcConnection,
    query: str,
    origin: tuple[int, int, str, LeaseHandles | StreamHandle],
    batch_bytes: int,
    columns: tuple[str, ...],
) -> Iterator[pa.RecordBatch]:
    """The rows of a SELECT of ``duewheel.any_message``, as :func:`message_batch` makes them of ``origin``."""
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
        connection, query: a SELECT, and where to run it.
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
