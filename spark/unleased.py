"""Reading a range of a queue without a lease, on an executor, for a stream or for a look."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from psycopg2.extensions import QuotedString

from duewheel.spark.arrow_connections import arrow_connection
from duewheel.spark.lease_reader import queried, selected
from duewheel.spark.statements import statement
from duewheel.store.values import tags as tag_expressions

if TYPE_CHECKING:
    import pyarrow as pa

    from duewheel.spark.message_columns import StreamHandle
    from duewheel.spark.read_options import UnleasedRead


_QUERY = statement("stream_query")


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
    """Read the messages of a range that the options choose.

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
    with arrow_connection(options.dsn) as connection:
        # Without a lease nothing can be answered: an ack with such a handle is refused.
        origin = (
            *(place.topic_id, place.queue, place.topic),
            handle or f"0.{place.topic_id}.{place.queue}.0.0",
        )
        with selected(connection, _QUERY.format(arguments=arguments, call=call), ["query"]) as rows:
            (row,) = rows.read_all().to_pylist()
        yield from queried(connection, row["query"], origin, options.batch_bytes, columns)


def _literal(value: str | None) -> str:
    if value is None:
        return "null"
    quoted = QuotedString(value)
    quoted.encoding = "utf8"
    return bytes(quoted.getquoted()).decode()
