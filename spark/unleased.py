"""Reading a range of a queue without a lease, on an executor, for a stream or for the mode peek."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from psycopg2.extensions import QuotedString

from duewheel.spark.arrow_connections import arrow_connection
from duewheel.spark.lease_reader import queried
from duewheel.store.values import tags as tag_expressions

if TYPE_CHECKING:
    import pyarrow as pa

    from duewheel.spark.message_columns import StreamHandle
    from duewheel.spark.read_options import UnleasedRead


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
    statement: str,
    handle: StreamHandle | None = None,
    **places: int | None,
) -> Iterator[pa.RecordBatch]:
    """Read the messages of a range that the options choose.

    Args:
        options: the address, tags, filter and the size of a batch.
        columns: the columns wanted.
        place: the topic and the queue where the messages are.
        statement: SQL with names in braces: ``topic_id``, ``queue``, ``tags``, ``filter`` and the places.
        handle: the stream that reads them, which may reject them; None for the mode peek.
        places: where the range begins and ends, as the statement names it; microseconds and numbers.
    """
    tags = tag_expressions.parse(options.tags)
    query = statement.format(
        topic_id=place.topic_id,
        queue=place.queue,
        tags="null" if tags is None else "array[" + ", ".join(_literal(tag) for tag in tags) + "]",
        filter=_literal(options.filter),
        **{name: "null" if place is None else place for name, place in places.items()},
    )
    with arrow_connection(options.dsn) as connection:
        # Without a lease nothing can be answered: an ack with such a handle is refused.
        origin = (
            *(place.topic_id, place.queue, place.topic),
            handle or f"0.{place.topic_id}.{place.queue}.0.0",
        )
        yield from queried(connection, query, origin, options.batch_bytes, columns)


def _literal(value: str | None) -> str:
    if value is None:
        return "null"
    quoted = QuotedString(value)
    quoted.encoding = "utf8"
    return bytes(quoted.getquoted()).decode()
