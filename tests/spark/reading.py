"""Messages for the tests of Spark, and the readers of the data source, called as Spark calls them."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.streaming.datasource import ReadAllAvailable

from duewheel.spark.batch import Batch
from duewheel.spark.data_source import DueWheelDataSource
from duewheel.spark.read_options import StreamRead
from duewheel.spark.stream_reader import MessageStreamReader
from duewheel.store.leases import to_json

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql.types import StructType

    from duewheel.store.broker import Broker

TOPIC = "orders"
#: Of a batch, and of a stream.
GROUP, LAKE = "canceller", "lake"
AT_ONCE = timedelta(0)
EVERY = ReadAllAvailable()

Offset = dict[str, Any]


def send(
    broker: Broker, keys: Iterable[int], *, topic: str = TOPIC, connection: Any = None, **fields: Any
) -> list[str]:
    """Send messages with these keys, due at once unless said otherwise, and return their ids."""
    messages = [{"body": b"", "key": str(key), "delay": AT_ONCE, **fields} for key in keys]
    return [receipt.message_id for receipt in broker.send_many(topic, messages, connection=connection)]


def take(broker: Broker, topic: str = TOPIC, **options: Any) -> Batch:
    """Lease messages for as long as Spark takes to start."""
    return Batch.take(broker, topic, GROUP, **{"invisible": timedelta(hours=1), **options})


def reader(batch: Batch, schema: StructType | None = None, **options: str) -> DataSourceReader:
    """The reader of a batch, with these options."""
    source = DueWheelDataSource({"dsn": batch._broker.dsn, "lease": to_json(batch.leases), **options})
    return source.reader(source.schema() if schema is None else schema)


def rows(read: DataSourceReader) -> list[dict[str, Any]]:
    """All that a reader reads."""
    return [
        row
        for part in read.partitions()
        for batch in read.read(part)
        for row in batch.to_pylist()  # type: ignore[union-attr]
    ]


def stream(broker: Broker, *columns: str, **options: str) -> MessageStreamReader:
    """The reader of a stream, of the keys unless said otherwise."""
    given = {"dsn": broker.dsn, "topic": TOPIC, "group": LAKE, **options}
    if "topicPattern" in options:
        del given["topic"]
    return MessageStreamReader(StreamRead.of(given), columns or ("key",))


def between(read: MessageStreamReader, start: Offset, end: Offset) -> list[int]:
    """The keys between two offsets, sorted."""
    return sorted(
        int(key)
        for part in read.partitions(start, end)
        for batch in read.read(part)
        for key in batch["key"].to_pylist()
    )
