"""``spark.read.format("duewheel").load(topic)``: a look at the messages that a topic has, for analysis.

Nothing is leased, no group is made, and no consumer is kept waiting. Each range is read as it is at that
moment. A DataFrame that is read twice may have changed, as messages are sent, recalled, and dropped at the
end of their retention. A message that is sent while the job runs may or may not be read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from duewheel.spark.lease_partition import cut_into
from duewheel.spark.lease_plan import planning
from duewheel.spark.statements import statement
from duewheel.spark.told_errors import told_first
from duewheel.store.consuming.filtering import check_filters
from duewheel.store.database.connections import fetch

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from duewheel.spark.read_options import LookRead, UnleasedRead

_CUTS = statement("peek_cuts")
_TOPICS = statement("topics")


@dataclass(frozen=True)
class LookRange(InputPartition):
    """The range of a queue that one task reads, in microseconds and numbers."""

    topic: str
    topic_id: int
    queue: int
    from_at: int | None
    from_seq: int
    to_at: int
    to_seq: int


def check_choice(read: UnleasedRead) -> None:
    """Check what the options choose.

    Raises:
        UnknownTopic: one of the named topics does not exist.
        InvalidFilter: the filter is not a predicate of jsonpath.
    """
    if not read.topics and read.filter is None:
        return
    nothing = datetime.now(UTC)
    with planning(read.dsn) as connection:
        check_filters(partial(fetch, connection), read.filter)
        for topic in read.topics:
            fetch(connection, _CUTS, (topic, nothing, nothing, 1, 1, False))


@told_first
class LookReader(DataSourceReader):
    """Cuts the stored messages into ranges on the driver and reads them on the executors."""

    def __init__(self, options: LookRead, columns: tuple[str, ...], schema: StructType | None = None) -> None:
        self._options = options
        self._columns = columns
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Ranges of as many messages as the options allow.

        Raises:
            UnknownTopic: the topic does not exist.
            InvalidFilter: the filter is not a predicate of jsonpath.
        """
        options = self._options

        def cut(messages: int) -> list[tuple[LookRange, int]]:
            is_exact = options.min_partitions > 1
            wanted = (options.due_from, options.due_until, messages, options.partition_bytes, is_exact)
            return [
                (LookRange(topic, *place), count)
                for topic in topics
                for *place, count in fetch(connection, _CUTS, (topic, *wanted))
            ]

        with planning(options.dsn) as connection:
            check_filters(partial(fetch, connection), options.filter)
            topics: Sequence[str] = options.topics
            if options.pattern is not None:
                found = fetch(connection, _TOPICS, ())
                topics = [topic for (topic,) in found if re.fullmatch(options.pattern, topic)]
            return cut_into(cut, options.min_partitions, options.partition_messages)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range, on an executor."""
        if not isinstance(partition, LookRange):
            # Spark passes this stand-in for a DataFrame without partitions.
            return
        from duewheel.spark.message_batches import as_asked
        from duewheel.spark.message_reader import read_unleased

        begin, end = (partition.from_at, partition.from_seq), (partition.to_at, partition.to_seq)
        batches = read_unleased(self._options, self._columns, partition, (*begin, *end, None, None))
        yield from as_asked(batches, self._schema)
