"""The columns of a message in a Spark DataFrame.

Properties are JSON text and not a map. They are JSON in the broker, so a number or a nested value
keeps its type. The text passes from Postgres to Spark untouched, and ``get_json_object``, ``from_json`` and
``parse_json`` read it inside the JVM, only for the rows that need it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType, TimestampType

from duewheel.store.values.errors import InvalidArgument

SPARK_SCHEMA = StructType(
    [
        StructField("message_id", StringType(), nullable=False),
        StructField("topic", StringType(), nullable=False),
        StructField("key", StringType()),
        StructField("tag", StringType()),
        StructField("properties", StringType()),
        StructField("message_group", StringType()),
        StructField("body", BinaryType(), nullable=False),
        StructField("value", StringType()),
        StructField("born_at", TimestampType(), nullable=False),
        StructField("deliver_at", TimestampType(), nullable=False),
        StructField("attempt", IntegerType(), nullable=False),
        StructField("receipt_handle", StringType(), nullable=False),
    ]
)
"""The columns of ``spark.read.format("duewheel")``, one row for each message.

``message_id``: 44 hexadecimal digits, the same over all retries. ``topic``: the one it was sent to, also for
a retry. ``properties``: JSON text. ``deliver_at``: when this delivery was due; for a retry, when the retry
was due. ``value``: the body as text, if its content type is text or JSON and it is UTF-8. ``attempt``: 1 for
the first. ``receipt_handle``: answers this message alone, with the SQL functions
``duewheel.ack`` and ``duewheel.nack``.
"""

ALL_COLUMNS = tuple(SPARK_SCHEMA.names)

# The columns of the query that a column is made of; every other column is read as it is.
_MADE_OF = {
    "message_id": ("origin_id", "deliver_at", "seq"),
    "topic": (),
    "value": ("body", "is_text"),
    "receipt_handle": ("deliver_at", "seq"),
}


@dataclass(frozen=True)
class StreamHandle:
    """The receipt handles of a stream: they name no lease, but the stream, by its number, and its group."""

    stream: int
    group_id: int

    @classmethod
    def of(cls, stream: str, group_id: int) -> StreamHandle:
        """From the stream's name, 16 hexadecimal digits."""
        return cls(int.from_bytes(bytes.fromhex(stream), signed=True), group_id)


def check_columns(names: Iterable[str]) -> tuple[str, ...]:
    """Names of columns, each once, as Spark knows them: in whatever case they are given.

    Raises:
        InvalidArgument: a column is unknown, none is named, one is named twice, or the names are one text
            instead of a list.
    """
    if isinstance(names, str):
        raise InvalidArgument(f"columns is the text {names!r}: give a list of names, as {[names]}")
    columns = tuple(name.lower() for name in names)
    unknown = [name for name in columns if name not in ALL_COLUMNS]
    if unknown:
        raise InvalidArgument(f"there are no columns {unknown}: {suggestion(unknown, ALL_COLUMNS)}")
    if not columns or len(set(columns)) < len(columns):
        problem = "a column is named twice" if columns else "no column is named"
        raise InvalidArgument(f"{problem}: choose from {', '.join(ALL_COLUMNS)}, each once")
    return columns


def columns_of(schema: StructType) -> tuple[str, ...]:
    """The columns of a schema that is :data:`SPARK_SCHEMA` or a part of it.

    Raises:
        InvalidArgument: the schema has another column, or a column of another type.
    """
    columns = check_columns(schema.names)
    for name, field in zip(columns, schema.fields, strict=True):
        own, given = (kind.dataType.simpleString() for kind in (SPARK_SCHEMA[name], field))
        if given != own:
            raise InvalidArgument(
                f"the column {field.name} is {own}, not {given}: give the option columns instead of "
                ".schema(...), or name columns with their own types"
            )
    return columns


def spark_schema(columns: Sequence[str]) -> StructType:
    """The part of :data:`SPARK_SCHEMA` that has these columns."""
    return StructType([SPARK_SCHEMA[name] for name in columns])


def query_columns(columns: Sequence[str]) -> list[str]:
    """The columns of the statement ``read_lease`` that are needed to make these columns; at least one."""
    needed = dict.fromkeys(part for name in columns for part in _MADE_OF.get(name, (name,)))
    return list(needed) or ["seq"]


def suggestion(unknown: Iterable[str], names: Collection[str]) -> str:
    """What to do about unknown names of options or columns, the end of an error's text.

    It is the near names, whatever their case and underscores, if each unknown name has one; otherwise all.

    Example::

        suggestion(["min_partitions"], OPTIONS)  # "did you mean minPartitions?"
    """
    # Errors alone need it.
    from difflib import get_close_matches

    plain = {_plain(name): name for name in names}
    near = [get_close_matches(_plain(name), plain, n=1) for name in unknown]
    if all(near):
        return f"did you mean {', '.join(dict.fromkeys(plain[match] for (match,) in near))}?"
    return f"choose from {', '.join(names)}"


def _plain(name: str) -> str:
    return name.lower().replace("_", "")
