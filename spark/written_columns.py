"""The columns of a DataFrame that is written, and the rows that are staged of them.

A DataFrame gives for each message the arguments of ``send``. The driver checks the columns and their types
once; the database checks the values of each row, as for any other message.

The rows keep Arrow's form: Spark's batches go into COPY's binary form without Python looking at a row. Only
properties that are a map are written as JSON one by one.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from duewheel.store.values.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

TIME_COLUMNS = ("deliver_at", "delay", "delay_level")
"""The columns that give the delivery time."""

_WHOLE = (ByteType, ShortType, IntegerType, LongType)
_TYPES: dict[str, tuple[tuple[type[DataType], ...], str]] = {
    "body": ((StringType, BinaryType), "string or binary"),
    "key": ((StringType,), "string"),
    "tag": ((StringType,), "string"),
    "properties": ((StringType, MapType), "map<string,string>, or string with a JSON object"),
    "message_group": ((StringType,), "string"),
    "deliver_at": ((TimestampType,), "timestamp"),
    "delay": (
        (DayTimeIntervalType, *_WHOLE, FloatType, DoubleType, DecimalType),
        "interval day to second, or a number of seconds",
    ),
    "delay_level": (_WHOLE, "int"),
}

WRITTEN_COLUMNS = tuple(_TYPES)

# Longer delays are out of range for every topic; much longer ones cannot be added to an instant.
_LONGEST_DELAY_SECONDS = 4000 * 86400
_MICROSECONDS = 1_000_000
_MAX_LEVEL = 2**31 - 1


def check_written_columns(schema: StructType, topic: str, message_type: str) -> None:
    """Judge the columns of a DataFrame that is to be sent to a topic.

    Raises:
        InvalidArgument: the column body is missing, a column is unknown or of another type, or the columns do
            not fit the type of the topic.
    """
    for field in schema.fields:
        if field.name not in _TYPES:
            raise InvalidArgument(
                f"a message has no {field.name!r}: select columns of {', '.join(WRITTEN_COLUMNS)}"
            )
        types, wanted = _TYPES[field.name]
        kind = field.dataType
        is_other_map = isinstance(kind, MapType) and not (
            isinstance(kind.keyType, StringType) and isinstance(kind.valueType, StringType)
        )
        if not isinstance(kind, types) or is_other_map:
            raise InvalidArgument(
                f"the column {field.name} is {kind.simpleString()}: it has to be {wanted}; cast it"
            )
    names = schema.names
    if "body" not in names or len(set(names)) < len(names):
        problem = "the column body is missing" if "body" not in names else "a column is named twice"
        raise InvalidArgument(
            f"{problem}: select body and any of {', '.join(WRITTEN_COLUMNS[1:])}, each once"
        )
    times = [name for name in names if name in TIME_COLUMNS]
    if message_type == "DELAY" and not times:
        raise InvalidArgument(
            f"topic {topic!r} is of type DELAY and no column gives the delivery time: add one of "
            f"{', '.join(TIME_COLUMNS)}"
        )
    if message_type != "DELAY" and times:
        raise InvalidArgument(
            f"topic {topic!r} is of type {message_type}, which has no delays: drop {', '.join(times)}, or "
            "write to a topic of type DELAY"
        )
    if message_type == "FIFO" and "message_group" not in names:
        raise InvalidArgument(
            f"topic {topic!r} is of type FIFO and the column message_group is missing: add it, as messages "
            "of one message group keep their order"
        )


def staged_schema(names: Iterable[str]) -> pa.Schema:
    """The columns of ``duewheel.staged_message`` that hold these columns of a DataFrame."""
    fields = [pa.field("part_id", pa.int64()), pa.field("place", pa.int32())]
    return pa.schema(fields + [pa.field(*_STAGED[name]) for name in names])


_STAGED = {
    "body": ("body", pa.binary()),
    "key": ("key", pa.string()),
    "tag": ("tag", pa.string()),
    # The order of COPY's binary form.
    "properties": ("properties", pa.binary()),
    "message_group": ("message_group", pa.string()),
    "deliver_at": ("deliver_at", pa.timestamp("us", tz="UTC")),
    "delay": ("delay_microseconds", pa.int64()),
    "delay_level": ("delay_level", pa.int32()),
}


class _WrongRow(Exception):
    """A row of a batch that cannot be sent."""

    def __init__(self, row: int, said: str) -> None:
        super().__init__(said)
        self.row = row


def staged_batches(
    batches: Iterable[pa.RecordBatch], names: tuple[str, ...], part_id: int, partition: int = 0
) -> Iterator[pa.RecordBatch]:
    """Spark's batches, as batches of :func:`staged_schema`.

    Args:
        batches: the rows of a partition.
        names: their columns.
        part_id: the number of the part that they are staged as.
        partition: the number of the partition, for errors.

    Raises:
        InvalidArgument: a delay is no number; the error names the row.
    """
    schema = staged_schema(names)
    place = 0
    for batch in batches:
        count = batch.num_rows
        columns = [
            # pa.array and pa.scalar import pandas, which takes a new process longer than many rows.
            pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(np.full(count, part_id, np.int64))]),
            pa.Array.from_buffers(
                pa.int32(), count, [None, pa.py_buffer(np.arange(place, place + count, dtype=np.int32))]
            ),
        ]
        try:
            columns += [_staged(name, batch.column(index)) for index, name in enumerate(names)]
        except _WrongRow as wrong:
            key = batch.column(names.index("key"))[wrong.row].as_py() if "key" in names else None
            keyed = f' with the key "{key[:80]}"' if key else ""
            raise InvalidArgument(
                f"row {place + wrong.row} of partition {partition}{keyed}: {wrong}"
            ) from None
        yield pa.RecordBatch.from_arrays(columns, schema=schema)
        place += count


def _staged(name: str, column: pa.Array) -> pa.Array:
    if name == "properties":
        return _json(column)
    if name == "delay":
        return _microseconds(column)
    if name == "delay_level":
        return _between(column.cast(pa.int64()), _MAX_LEVEL).cast(pa.int32())
    return column.cast(_STAGED[name][1])


def _json(column: pa.Array) -> pa.Array:
    if pa.types.is_map(column.type):
        texts = [None if pairs is None else json.dumps(dict(pairs)) for pairs in column.to_pylist()]
        column = pa.array(texts, pa.string())
    # The binary form of jsonb begins with a version number, before the text.
    form = pa.scalar(b"\1", pa.binary())
    return pc.binary_join_element_wise(form, column.cast(pa.binary()), pa.scalar(b"", pa.binary()))


def _microseconds(column: pa.Array) -> pa.Array:
    longest = _LONGEST_DELAY_SECONDS * _MICROSECONDS
    if pa.types.is_duration(column.type):
        return _between(column.cast(pa.duration("us")).cast(pa.int64()), longest)
    if pa.types.is_integer(column.type):
        return pc.multiply(_between(column.cast(pa.int64()), _LONGEST_DELAY_SECONDS), _MICROSECONDS)
    seconds = column.cast(pa.float64())
    nan = pc.index(pc.is_nan(seconds), True).as_py()
    if nan >= 0:
        raise _WrongRow(nan, "a delay is NaN: give a number of seconds, or null for none")
    return pc.round(pc.multiply(_between(seconds, float(_LONGEST_DELAY_SECONDS)), _MICROSECONDS)).cast(
        pa.int64()
    )


def _between(column: pa.Array, limit: float) -> pa.Array:
    """The values, cut off at the limit on both sides; nulls stay."""
    low, high = pa.scalar(-limit, column.type), pa.scalar(limit, column.type)
    return pc.min_element_wise(pc.max_element_wise(column, low, skip_nulls=False), high, skip_nulls=False)
