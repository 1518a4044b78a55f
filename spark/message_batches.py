"""The Arrow batches that carry messages to Spark.

The message id is 22 bytes (topic, queue, delivery instant, sequence number) in hexadecimal. Made in SQL for
every row it costs as much as reading all other columns together; here it is made for a whole batch at once.
The buffers are filled by hand: ``pyarrow.array`` and ``pyarrow.scalar`` import pandas where it is installed,
which takes a new Python worker longer than reading a hundred thousand messages. Arrow's functions are called
by their names for the same reason (:mod:`duewheel.spark.undocumented`).
"""

from __future__ import annotations

from binascii import hexlify
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class LeaseHandles:
    """The receipt handles of the messages of adjacent leases of a queue.

    Attributes:
        prefixes: the beginning of the handles of each lease's messages.
        end_micros, end_seqs: each lease's last place; of a single lease none is needed.
    """

    prefixes: Sequence[str]
    end_micros: Sequence[int] = ()
    end_seqs: Sequence[int] = ()

    def prefix_of_each(self, rows: pa.RecordBatch) -> Any:
        """The beginning of each row's handle, or the beginning of all."""
        if len(self.prefixes) == 1:
            return _text(self.prefixes[0])
        at, seq = _numbers(rows.column("deliver_at")), _numbers(rows.column("seq"))
        end_at, end_seq = np.array(self.end_micros), np.array(self.end_seqs)
        lease = np.searchsorted(end_at, at)
        # Several leases may end at one instant.
        while (later := (end_at[lease] == at) & (end_seq[lease] < seq)).any():
            lease += later
        encoded = [prefix.encode() for prefix in self.prefixes]
        offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
        prefixes = _strings(b"".join(encoded), offsets)
        indices = pa.Array.from_buffers(pa.int64(), len(lease), [None, pa.py_buffer(lease)])
        return call_function("take", [prefixes, indices])


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
    handles: LeaseHandles | StreamHandle,
    columns: tuple[str, ...] = ALL_COLUMNS,
) -> pa.RecordBatch:
    """Turn a batch of the statement ``read_lease`` into a batch of :func:`arrow_schema`.

    Args:
        rows: messages of one queue.
        topic_id, queue: where they are stored.
        topic: the name of the topic that they were sent to; of a retry, another one.
        handles: those of their leases, or of the stream that reads them.
        columns: the columns wanted.
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
            if isinstance(handles, LeaseHandles):
                return _joined(handles.prefix_of_each(rows), seqs)
            place, stream, group = map(_text, (f"0.{topic_id}.{queue}", handles.stream, handles.group_id))
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
    own = _equally_long(hexlify(packed.tobytes()), 2 * _ID.itemsize, count)
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


def _text(value: object) -> pa.Scalar:
    return _repeated(str(value), 1)[0]


def _repeated(text: str, count: int) -> pa.Array:
    encoded = text.encode()
    return _equally_long(encoded * count, len(encoded), count)


def _equally_long(content: bytes, width: int, count: int) -> pa.Array:
    return _strings(content, np.arange(0, width * (count + 1), width, dtype=np.int32))


def _strings(content: bytes, offsets: np.ndarray[Any, np.dtype[np.int32]]) -> pa.Array:
    """An array of strings, from their bytes one after the other, and where each begins."""
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(content)]
    return pa.Array.from_buffers(pa.string(), len(offsets) - 1, buffers)


_DOT = _text(".")
_NO_BODY = pa.Array.from_buffers(
    pa.binary(), 1, [pa.py_buffer(b"\0"), pa.py_buffer(bytes(8)), pa.py_buffer(b"")]
)[0]
