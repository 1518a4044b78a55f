"""The Arrow batches that carry messages to Spark.

The message id is 22 bytes (topic, queue, delivery instant, sequence number) in hexadecimal. Made in SQL for
every row it costs as much as reading all other columns together; here it is made for a whole batch at once.
The buffers are filled by hand: ``pyarrow.array`` and ``pyarrow.scalar`` import pandas where it is installed,
which takes a new Python worker longer than reading a hundred thousand messages. Arrow's functions are called
by their names for the same reason (:mod:`duewheel.spark.undocumented`).
"""

from __future__ import annotations

from binascii import hexlify
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from duewheel.spark.message_columns import ALL_COLUMNS, StreamHandle, spark_schema
from duewheel.spark.undocumented import CastOptions, call_function
from duewheel.store.values.errors import InvalidArgument

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_ID = np.dtype([("topic_id", ">i4"), ("queue", ">i2"), ("deliver_microseconds", ">i8"), ("seq", ">i8")])


@cache
def arrow_schema(columns: tuple[str, ...] = ALL_COLUMNS) -> pa.Schema:
    """The columns of :data:`SPARK_SCHEMA` as Spark checks them against the first batch it is given."""
    return to_arrow_schema(spark_schema(columns), timezone="UTC")


def as_asked(batches: Iterator[pa.RecordBatch], schema: StructType | None) -> Iterator[pa.RecordBatch]:
    """The batches in a schema that Spark was given, which may differ in whether a column may be null.

    Raises:
        InvalidArgument: a column is null in a message, and the schema says that it never is.
    """
    if schema is None:
        yield from batches
        return
    asked = to_arrow_schema(schema, timezone="UTC")
    for batch in batches:
        for field, column in zip(asked, batch.columns, strict=True):
            if column.null_count and not field.nullable:
                raise InvalidArgument(
                    f"the column {field.name} is null in a message, and the schema says that it never is: "
                    "leave its not null out"
                )
        yield pa.RecordBatch.from_arrays(batch.columns, schema=asked)


def message_batch(
    rows: pa.RecordBatch,
    topic_id: int,
    queue: int,
    topic: str,
    handle: str | StreamHandle,
    columns: tuple[str, ...] = ALL_COLUMNS,
) -> pa.RecordBatch:
    """Turn a batch of the statement ``read_lease`` into a batch of :func:`arrow_schema`.

    Args:
        rows: the columns of the query.
        topic_id: number of the topic that the rows lie on.
        queue: the queue there.
        topic: name of the topic that all rows were sent to.
        handle: the beginning of the receipt handles of all rows, or the stream that reads them.
        columns: the columns wanted.

    Raises:
        pyarrow.ArrowTypeError: the query's columns are not those of the schema.
    """

    def made(name: str) -> pa.Array:
        if name == "message_id":
            return _message_ids(rows, topic_id, queue)
        if name == "topic":
            return _repeated(topic, rows.num_rows)
        if name == "value":
            return _texts(rows.column("body"), rows.column("is_text"))
        if name == "receipt_handle":
            seqs = _cast(rows.column("seq"), pa.string())
            if isinstance(handle, str):
                return _joined(_repeated(handle, 1)[0], seqs)
            parts = (f"0.{topic_id}.{queue}", str(handle.stream), str(handle.group_id))
            place, stream, group = (_repeated(part, 1)[0] for part in parts)
            micros = _cast(_cast(rows.column("deliver_at"), pa.int64()), pa.string())
            return _joined(place, micros, stream, seqs, group)
        return _plain(rows.column(name))

    return pa.RecordBatch.from_arrays([made(name) for name in columns], schema=arrow_schema(columns))


def _message_ids(rows: pa.RecordBatch, topic_id: int, queue: int) -> pa.Array:
    count = rows.num_rows
    packed = np.empty(count, dtype=_ID)
    packed["topic_id"] = topic_id
    packed["queue"] = queue
    packed["deliver_microseconds"] = _numbers(rows.column("deliver_at"))
    packed["seq"] = _numbers(rows.column("seq"))
    own = _strings(hexlify(packed.tobytes()), 2 * _ID.itemsize, count)
    origins = rows.column("origin_id")
    return own if origins.null_count == count else call_function("coalesce", [origins, own])


def _texts(bodies: pa.Array, is_text: pa.Array) -> pa.Array:
    """The bodies that are text; null for others, and for bytes that are no UTF-8."""
    texts = call_function("if_else", [is_text, bodies, _NO_BODY])
    try:
        return _cast(texts, pa.string())
    except pa.ArrowInvalid:
        known = [_is_utf8(body) for body in texts.to_pylist()]
        return _cast(call_function("if_else", [pa.array(known), texts, _NO_BODY]), pa.string())


def _is_utf8(body: bytes | None) -> bool:
    try:
        (body or b"").decode()
    except UnicodeDecodeError:
        return False
    return True


def _numbers(column: pa.Array) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The values of a column of 8-byte numbers or instants without nulls, as they lie in memory."""
    if column.null_count or column.type not in (pa.int64(), pa.timestamp("us", tz="UTC")):
        raise pa.ArrowTypeError(f"expected 8-byte numbers or instants without nulls, got {column.type}")
    return np.frombuffer(column.buffers()[1], dtype=np.int64, count=len(column), offset=column.offset * 8)


def _plain(column: pa.Array) -> pa.Array:
    """A column as Spark knows it: JSON as the text it is."""
    return column.storage if isinstance(column, pa.ExtensionArray) else column


def _cast(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    return call_function("cast", [column], CastOptions.safe(wanted))


def _joined(*parts: Any) -> pa.Array:
    """The texts of some columns, and of scalars, row by row, with dots between."""
    return call_function("binary_join_element_wise", [*parts, _DOT])


def _repeated(text: str, count: int) -> pa.Array:
    encoded = text.encode()
    return _strings(encoded * count, len(encoded), count)


def _strings(content: Any, width: int, count: int) -> pa.Array:
    """An array of ``count`` strings of ``width`` bytes each, from their bytes one after the other."""
    offsets = np.arange(0, width * (count + 1), width, dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(content)])


_DOT = _repeated(".", 1)[0]
_NO_BODY = pa.Array.from_buffers(
    pa.binary(), 1, [pa.py_buffer(b"\0"), pa.py_buffer(bytes(8)), pa.py_buffer(b"")]
)[0]
