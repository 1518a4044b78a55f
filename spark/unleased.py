"""Reading a range of a queue without a lease, on an executor, for a stream or for the mode peek."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import adbc_driver_manager
import adbc_driver_postgresql
from psycopg2.extensions import QuotedString

from duewheel.spark.lease_reader import queried
from duewheel.store.values import filters
from duewheel.store.values import tags as tag_expressions

if TYPE_CHECKING:
    import pyarrow as pa

    from duewheel.spark.message_columns import StreamHandle
    from duewheel.spark.read_options import UnleasedRead


def read_unleased(
    options: UnleasedRead,
    columns: tuple[str, ...],
    topic_id: int,
    queue: int,
    statement: str,
    handle: StreamHandle | None = None,
    **places: int | None,
) -> Iterator[pa.RecordBatch]:
    """Read the messages of a range that the options choose.

    Args:
        options: the address, the topic's name, tags, filter and the size of a batch.
        columns: the columns wanted.
        topic_id, queue: where the messages are.
        statement: SQL with names in braces: ``topic_id``, ``queue``, ``tags``, ``filter`` and the places.
        handle: the stream that reads them, which may reject them; None for the mode peek.
        places: where the range begins and ends, as the statement names it; microseconds and numbers.
    """
    tags = tag_expressions.parse(options.tags)
    query = statement.format(
        topic_id=topic_id,
        queue=queue,
        tags="null" if tags is None else "array[" + ", ".join(_literal(tag) for tag in tags) + "]",
        filter=_literal(None if options.filter is None else filters.to_jsonpath(options.filter)),
        **{name: "null" if place is None else place for name, place in places.items()},
    )
    with (
        adbc_driver_postgresql.connect(options.dsn) as database,
        adbc_driver_manager.AdbcConnection(database) as connection,
    ):
        # Without a lease nothing can be answered: an ack with such a handle is refused.
        origin = (topic_id, queue, options.topic, handle or f"0.{topic_id}.{queue}.0.0")
        yield from queried(connection, query, origin, options.batch_bytes, columns)


def _literal(value: str | None) -> str:
    if value is None:
        return "null"
    quoted = QuotedString(value)
    quoted.encoding = "utf8"
    return bytes(quoted.getquoted()).decode()
