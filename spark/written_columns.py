"""The columns of a DataFrame that is written, and the rows that are staged of them.

A DataFrame gives for each message the arguments of ``send``. The driver checks the columns and their types
once; the database checks the values of each row, as it does for each message that is sent.

The rows keep Arrow's form: Spark's batches go into COPY's binary form without Python looking at a row. Only
properties that are a map are written as JSON one by one.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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

from duewheel.spark.message_columns import suggestion
from duewheel.store.values.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    _Numbers = np.ndarray[Any, np.dtype[Any]]

TIME_COLUMNS = ("deliver_at", "delay", "delay_level")
"""The columns that give the delivery time."""

_WHOLE = (ByteType, ShortType, IntegerType, LongType)
_TYPES: dict[str, tuple[tuple[type[DataType], ...], str]] = {
    "topic": ((StringType,), "string"),
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


def written_columns(schema: StructType, topic: str | None, message_type: str | None) -> tuple[str, ...]:
    """Judge the columns of a DataFrame that is to be sent; returns their names, in lower case.

    Args:
        schema: its columns.
        topic: the topic to send to; None where the column topic names that of each row.
        message_type: its type, or None.

    Raises:
        InvalidArgument: the column body is missing, a column is unknown or of another type, or the columns do
            not fit the type of the topic.
    """
    # Column names of Spark are not case-sensitive.
    names = tuple(name.lower() for name in schema.names)
    for name, field in zip(names, schema.fields, strict=True):
        if name not in _TYPES:
            # What a read has beside its body, and a sink of Kafka in its place.
            meant = "body" if name == "value" else name
            raise InvalidArgument(
                f"the column {field.name!r} cannot be written: {suggestion([meant], WRITTEN_COLUMNS)}"
            )
        types, wanted = _TYPES[name]
        kind = field.dataType
        is_other_map = isinstance(kind, MapType) and not (
            isinstance(kind.keyType, StringType) and isinstance(kind.valueType, StringType)
        )
        if not isinstance(kind, types) or is_other_map:
            raise InvalidArgument(
                f"the column {field.name} is {kind.simpleString()}: it has to be {wanted}; cast it"
            )
    if "body" not in names or len(set(names)) < len(names):
        problem = "the column body is missing" if "body" not in names else "a column is named twice"
        raise InvalidArgument(
            f"{problem}: select body and any of {', '.join(WRITTEN_COLUMNS[1:])}, each once"
        )
    if topic is None and "topic" not in names:
        raise InvalidArgument(
            "the option 'topic' is missing: name the topic to send to, or add a column topic that names that "
            "of each row"
        )
    if topic is None:
        # Each row is judged when its topic is known.
        return names
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
    return names


def staged_schema(names: Iterable[str]) -> pa.Schema:
    """The columns of ``duewheel.staged_message`` that hold these columns of a DataFrame."""
    fields = [pa.field("part_id", pa.int64()), pa.field("place", pa.int32())]
    return pa.schema(fields + [pa.field(*_STAGED[name]) for name in names if name in _STAGED])


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


@dataclass
class TopicPart:
    """What one task has staged for one topic.

    Attributes:
        part_id: the number of the part, drawn at random for each run of a task.
        count: how many messages it has.
    """

    part_id: int
    count: int = 0


NO_PART = TopicPart(0)
"""The part of a task that has no message for a topic."""


class StagedParts:
    """The parts of one task, filled as its rows pass.

    Args:
        topic: the topic of all rows; None where a column names that of each.

    Attributes:
        by_topic: the part of each topic that was met.
    """

    def __init__(self, topic: str | None) -> None:
        self._topic = topic
        self.by_topic: dict[str, TopicPart] = {}

    def places(self, batch: pa.RecordBatch, names: Sequence[str]) -> tuple[_Numbers, _Numbers]:
        """For each row of a batch, the number of its part and its place there."""
        count = batch.num_rows
        if self._topic is not None:
            part = self._part(self._topic)
            first = part.count
            part.count += count
            return np.full(count, part.part_id, np.int64), np.arange(first, first + count, dtype=np.int32)
        column = batch.column(names.index("topic"))
        if column.null_count:
            raise _WrongRow(pc.index(pc.is_null(column), True).as_py(), "its topic is null: name one")
        met = column.dictionary_encode()
        topics = np.asarray(met.indices)
        parts = [self._part(name) for name in met.dictionary.to_pylist()]
        counts = np.bincount(topics, minlength=len(parts))
        # The rows of a topic, one after the other; each topic's first goes behind those staged before.
        by_topic = np.argsort(topics, kind="stable")
        firsts = np.array([part.count for part in parts]) - (np.cumsum(counts) - counts)
        places = np.empty(count, np.int32)
        places[by_topic] = np.arange(count) + np.repeat(firsts, counts)
        for part, more in zip(parts, counts, strict=True):
            part.count += int(more)
        return np.array([part.part_id for part in parts], np.int64)[topics], places

    def _part(self, topic: str) -> TopicPart:
        return self.by_topic.setdefault(topic, TopicPart(secrets.randbits(63)))


def staged_batches(
    batches: Iterable[pa.RecordBatch], names: tuple[str, ...], parts: StagedParts, partition: int = 0
) -> Iterator[pa.RecordBatch]:
    """Spark's batches, as batches of :func:`staged_schema`.

    Args:
        batches: the rows of a partition.
        names: their columns.
        parts: the parts that they are staged as.
        partition: the number of the partition, for errors.

    Raises:
        InvalidArgument: a delay is not a number, or a topic is null; the error names the row.
    """
    schema = staged_schema(names)
    row = 0
    for batch in batches:
        count = batch.num_rows
        try:
            part_ids, places = parts.places(batch, names)
            columns = [
                # pa.array and pa.scalar import pandas, which takes a new process longer than many rows.
                pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(part_ids)]),
                pa.Array.from_buffers(pa.int32(), count, [None, pa.py_buffer(places)]),
            ]
            columns += [
                _staged(name, batch.column(index)) for index, name in enumerate(names) if name in _STAGED
            ]
        except _WrongRow as wrong:
            key = batch.column(names.index("key"))[wrong.row].as_py() if "key" in names else None
            keyed = f' with the key "{key[:80]}"' if key else ""
            raise InvalidArgument(f"row {row + wrong.row} of partition {partition}{keyed}: {wrong}") from None
        yield pa.RecordBatch.from_arrays(columns, schema=schema)
        row += count


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
