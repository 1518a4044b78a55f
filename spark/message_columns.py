"""The columns of a message in a Spark DataFrame, and the Arrow batches that carry them.

Properties come as JSON text, not as a map: they are JSON in the broker, so a number or a nested value keeps
what it is; the text passes from Postgres to Spark untouched; and ``get_json_object``, ``from_json`` and
``parse_json`` read it inside the JVM, for the rows that need it.

The message id is 22 bytes (topic, queue, delivery instant, sequence number) in hexadecimal. Made in SQL for
every row it costs as much as reading all other columns together; here it is made for a whole batch at once.
The buffers are filled by hand: ``pyarrow.array`` and ``pyarrow.scalar`` import pandas where it is installed,
which takes a new Python worker longer than reading a hundred thousand messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType, TimestampType

from duewheel.store.errors import InvalidArgument

SPARK_SCHEMA = StructType(
    [
        StructField("message_id", StringType(), nullable=False),
        StructField("topic", StringType(), nullable=False),
        StructField("key", StringType()),
        StructField("tag", StringType()),
        StructField("properties", StringType()),
        StructField("message_group", StringType()),
        StructField("body", BinaryType(), nullable=False),
        StructField("born_at", TimestampType(), nullable=False),
        StructField("deliver_at", TimestampType(), nullable=False),
        StructField("attempt", IntegerType(), nullable=False),
        StructField("receipt_handle", StringType(), nullable=False),
    ]
)
"""What ``spark.read.format("duewheel")`` returns, a row for each message.

``message_id``: 44 hexadecimal digits, the same over all retries (R01). ``topic``: the one it was sent to, a
retry's too (L05). ``properties``: JSON text. ``deliver_at``: when this delivery was due; of a retry, the
retry. ``attempt``: 1 for the first (R13). ``receipt_handle``: what the SQL functions ``duewheel.ack`` and
``duewheel.nack`` take, to answer for this message alone.
"""

_HEX_DIGITS = np.frombuffer("".join(f"{byte:02x}" for byte in range(256)).encode("ascii"), dtype=np.uint16)
_ID = np.dtype([("topic_id", ">i4"), ("queue", ">i2"), ("deliver_microseconds", ">i8"), ("seq", ">i8")])


ALL_COLUMNS = tuple(SPARK_SCHEMA.names)

# What a column is made of here; the others are columns of the query.
_MADE_OF = {
    "message_id": ("origin_id", "deliver_at", "seq"),
    "topic": (),
    "receipt_handle": ("deliver_at", "seq"),
}


@dataclass(frozen=True)
class StreamHandle:
    """What the receipt handles of a stream name: no lease, but the stream, by its number, and its group."""

    stream: int
    group_id: int

    @classmethod
    def of(cls, stream: str, group_id: int) -> StreamHandle:
        """From the stream's name, 16 hexadecimal digits."""
        return cls(int.from_bytes(bytes.fromhex(stream), signed=True), group_id)


def check_columns(names: Iterable[str]) -> tuple[str, ...]:
    """Names of columns, each once.

    Raises:
        InvalidArgument: there is no such column, none is named, or one is named twice.
    """
    columns = tuple(names)
    unknown = [name for name in columns if name not in ALL_COLUMNS]
    if unknown or not columns or len(set(columns)) < len(columns):
        problem = (
            f"there are no columns {unknown}"
            if unknown
            else "a column is named twice"
            if columns
            else "no column is named"
        )
        raise InvalidArgument(f"{problem}: choose from {', '.join(ALL_COLUMNS)}, each once")
    return columns


def columns_of(schema: StructType) -> tuple[str, ...]:
    """The columns of a schema that is :data:`SPARK_SCHEMA` or a part of it.

    Raises:
        InvalidArgument: it has another column, or one of another type.
    """
    columns = check_columns(schema.names)
    for field in schema.fields:
        own = SPARK_SCHEMA[field.name].dataType
        if field.dataType != own:
            raise InvalidArgument(
                f"the column {field.name} is {own.simpleString()}, not {field.dataType.simpleString()}: "
                "leave .schema(...) out, or name columns with their own types"
            )
    return columns


def spark_schema(columns: Sequence[str]) -> StructType:
    """The part of :data:`SPARK_SCHEMA` that has these columns."""
    return StructType([SPARK_SCHEMA[name] for name in columns])


def query_columns(columns: Sequence[str]) -> list[str]:
    """The columns of ``read_lease.sql`` that are needed to make these columns; at least one."""
    needed = dict.fromkeys(part for name in columns for part in _MADE_OF.get(name, (name,)))
    return list(needed) or ["seq"]


@cache
def arrow_schema(columns: tuple[str, ...] = ALL_COLUMNS) -> pa.Schema:
    """The columns of :data:`SPARK_SCHEMA` as Spark checks them against the first batch it is given."""
    return to_arrow_schema(spark_schema(columns), timezone="UTC")


def message_batch(
    rows: pa.RecordBatch,
    topic_id: int,
    queue: int,
    topic: str,
    handle: str | StreamHandle,
    columns: tuple[str, ...] = ALL_COLUMNS,
) -> pa.RecordBatch:
    """Turn a batch of ``read_lease.sql`` into a batch of :func:`arrow_schema`.

    Args:
        rows: the columns of the query.
        topic_id: number of the topic that the rows lie on.
        queue: the queue there.
        topic: name of the topic that all rows were sent to.
        handle: what the receipt handles of all rows begin with, or the stream that reads them.
        columns: the columns wanted.

    Raises:
        pyarrow.ArrowTypeError: the query's columns are not those of the schema.
    """

    def made(name: str) -> pa.Array:
        if name == "message_id":
            return _message_ids(rows, topic_id, queue)
        if name == "topic":
            return _repeated(topic, rows.num_rows)
        if name == "receipt_handle":
            seqs = pc.cast(rows.column("seq"), pa.string())
            if isinstance(handle, str):
                return pc.binary_join_element_wise(_repeated(handle, 1)[0], seqs, _DOT)
            parts = (f"0.{topic_id}.{queue}", str(handle.stream), str(handle.group_id))
            place, stream, group = (_repeated(part, 1)[0] for part in parts)
            micros = pc.cast(pc.cast(rows.column("deliver_at"), pa.int64()), pa.string())
            return pc.binary_join_element_wise(place, micros, stream, seqs, group, _DOT)
        return _plain(rows.column(name))

    return pa.RecordBatch.from_arrays([made(name) for name in columns], schema=arrow_schema(columns))


def _message_ids(rows: pa.RecordBatch, topic_id: int, queue: int) -> pa.Array:
    count = rows.num_rows
    packed = np.empty(count, dtype=_ID)
    packed["topic_id"] = topic_id
    packed["queue"] = queue
    packed["deliver_microseconds"] = _numbers(rows.column("deliver_at"))
    packed["seq"] = _numbers(rows.column("seq"))
    digits = _HEX_DIGITS[packed.view(np.uint8)]
    own = _strings(digits, 2 * _ID.itemsize, count)
    origins = rows.column("origin_id")
    return own if origins.null_count == count else pc.coalesce(origins, own)


def _numbers(column: pa.Array) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The values of a column of 8-byte numbers or instants without nulls, as they lie in memory."""
    if column.null_count or column.type not in (pa.int64(), pa.timestamp("us", tz="UTC")):
        raise pa.ArrowTypeError(f"expected 8-byte numbers or instants without nulls, got {column.type}")
    return np.frombuffer(column.buffers()[1], dtype=np.int64, count=len(column), offset=column.offset * 8)


def _plain(column: pa.Array) -> pa.Array:
    """A column as Spark knows it: JSON as the text it is."""
    return column.storage if isinstance(column, pa.ExtensionArray) else column


def _repeated(text: str, count: int) -> pa.Array:
    encoded = text.encode()
    return _strings(encoded * count, len(encoded), count)


def _strings(content: Any, width: int, count: int) -> pa.Array:
    """An array of ``count`` strings of ``width`` bytes each, from their bytes one after the other."""
    offsets = np.arange(0, width * (count + 1), width, dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(content)])


_DOT = _repeated(".", 1)[0]
