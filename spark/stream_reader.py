"""``spark.readStream.format("duewheel")``: released messages, as a stream whose offsets are places in the
release log.

A tick states for good which messages it released. So the messages between two places of a queue are the same
whenever they are read, by a task that runs again or by a query that restarts from its checkpoint. The stream
takes no leases and answers nothing. The checkpoint is the truth. When Spark has finished a micro-batch, the
group's position follows, so that monitoring sees the group's lag and retention keeps unread messages.

Messages whose transaction was committed late are stragglers, in a separate stream next to each queue.
Retries of the group are in its retry queue, which is one more queue of the offset.

A stream shares its group with no other reader. Its name is drawn at random when it begins, and is in each
offset and in each position that it sets. Another reader of the group, or a rewind, leaves a position with
another name. The stream then ends with an error, as each reader would get only a part of the messages.

A stream of several topics has such an offset for each, and begins with a topic when it first meets it: the
offset of a new query names none. So does that of a stream without the option group, whose group is drawn
at random and is in the checkpoint.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from duewheel.spark import stream_latest
from duewheel.spark.lease_partition import cut_into
from duewheel.spark.stream_place import StreamOffset, StreamOffsets
from duewheel.spark.stream_rest import StreamRest
from duewheel.spark.told_errors import told_first
from duewheel.spark.topic_stream import StreamBroker, StreamRange, TopicStream
from duewheel.store.values.errors import InvalidArgument

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from duewheel.spark.read_options import StreamRead


@told_first
class MessageStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches on the driver and reads them on the executors."""

    def __init__(
        self, options: StreamRead, columns: tuple[str, ...], schema: StructType | None = None
    ) -> None:
        self._options = options
        self._columns = columns
        self._schema = schema
        self._broker = StreamBroker(options)
        self._rest = StreamRest(options.dsn, listen=options.listen)
        self._streams: dict[tuple[str, str], TopicStream] = {}
        self._is_checked = False
        self._ends_with_available = False
        self._targets: stream_latest.Offsets | None = None
        self._reached: StreamOffsets | None = None
        self._triggered_at: float | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Begin a new stream and make the group its own.

        Spark asks again until the first micro-batch is finished, even in a restarted query, and the broker
        always gives the same answer. Of a stream whose offsets name their topics, the answer names none.

        Raises:
            InvalidArgument: a topic is of type FIFO. No group was made.
        """
        self._topics()
        only = self._only_topic()
        if only is not None:
            return self._stream(only, self._options.group).begin().as_dict()
        drawn = None if self._options.group else f"stream-{secrets.token_hex(8)}"
        return StreamOffsets(drawn, {}, is_begun=False).as_dict()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """At most ``maxMessagesPerTrigger`` in a micro-batch where that is given."""
        most = self._options.max_messages
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - its
        """How far the next micro-batch reads.

        When nothing came, the next answer takes a rest, which a release ends.
        """
        if not self._ends_with_available:
            self._rest.take()
        given = self._offsets(start)
        begin = self._begun(given)
        self._begin_look(begin)
        latest = self._latest(begin)
        self._reached = begin
        if latest == begin or self._waits_for_more(begin, latest):
            self._rest.lengthen()
            # The checkpoint names the beginning of a topic before its first message is read, or that there
            # was no topic.
            is_known = given.is_begun and begin.topics.keys() == given.topics.keys()
            return start if is_known else self._written(begin)
        self._rest.end()
        self._triggered_at = time.monotonic()
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        latest = self._cut(begin, latest, most, self._options.max_bytes)
        self._reached = latest
        return self._written(latest)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """How far the stream is behind the releases, by topic; the progress of the query shows it."""
        reached = self._reached
        if reached is None:
            return None
        reported = {}
        for topic, offset in reached.topics.items():
            messages, seconds = self._stream(topic, reached.group).lag(offset)
            reported[topic] = {"messagesBehind": messages, "secondsBehind": round(seconds, 3)}
        return reported

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Note how far messages are released now: the query ends there.

        Where the checkpoint has the group, this is noted when the first micro-batch is planned.
        """
        self._ends_with_available = True
        if self._options.group is not None:
            streams = [self._stream(topic, self._options.group) for topic in self._topics()]
            self._targets = stream_latest.targets_of(self._broker, streams)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Cut the messages between two offsets into parts of about equal size."""
        until = self._offsets(end)
        if not until.topics:
            return []
        given = self._offsets(start)
        begin = self._begun(replace(given, group=until.group), until.topics)
        ranges = self._ranges(begin, until)
        if not ranges:
            return []
        for topic in until.topics:
            self._stream(topic, until.group).require_kept([part for part in ranges if part.topic == topic])
        return cut_into(
            self._cuts(ranges, until.group), self._options.min_partitions, self._options.partition_messages
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one part, on an executor."""
        from duewheel.spark.message_batches import as_asked
        from duewheel.spark.message_reader import read_unleased

        assert isinstance(partition, StreamRange)
        start, end = partition.start, partition.end
        places = (start.at, start.seq, end.at, end.seq, start.straggler, end.straggler)
        batches = read_unleased(self._options, self._columns, partition, places, partition.handle)
        yield from as_asked(batches, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Let the group's position follow: Spark has finished everything up to here."""
        offsets = self._offsets(end)
        for topic, offset in offsets.topics.items():
            self._stream(topic, offsets.group).commit(offset)

    def stop(self) -> None:
        """Close the connections."""
        self._rest.close()
        self._broker.close()

    def __getstate__(self) -> dict[str, Any]:
        # Executors get the reader, and no connection of the driver.
        return {**self.__dict__, "_broker": None, "_rest": None, "_streams": {}, "_targets": None}

    def _only_topic(self) -> str | None:
        """The topic of a stream that has one, and a group: its offsets name neither."""
        options = self._options
        return options.topics[0] if len(options.topics) == 1 and options.group else None

    def _stream(self, topic: str, group: str | None) -> TopicStream:
        name = group or self._options.group
        assert name is not None, "the offset names the group where the options do not"
        if (topic, name) not in self._streams:
            self._streams[topic, name] = TopicStream(self._broker, self._options, topic, name)
        return self._streams[topic, name]

    def _topics(self) -> Sequence[str]:
        """The topics to read; a topic of type FIFO or a wrong filter is refused before a group is made."""
        pattern = self._options.pattern
        if not self._is_checked:
            self._broker.check_filter()
            self._broker.refuse_fifo(self._options.topics)
            self._is_checked = True
        if pattern is None:
            return self._options.topics
        return [topic for topic in self._broker.topics() if re.fullmatch(pattern, topic)]

    def _written(self, offsets: StreamOffsets) -> dict[str, Any]:
        """The offsets as Spark keeps them."""
        only = self._only_topic()
        return offsets.as_dict() if only is None else offsets.topics[only].as_dict()

    def _offsets(self, written: Mapping[str, Any]) -> StreamOffsets:
        """The offsets that a checkpoint has, of one topic or several; those of another stream are refused."""
        if written.get("v") == StreamOffsets.VERSION:
            offsets = StreamOffsets.of(written)
            self._require_same_kind_of_group(is_drawn=bool(offsets.group))
            return offsets
        offset = StreamOffset.of(written)
        self._require_same_kind_of_group(is_drawn=False)
        only = self._only_topic()
        if only is not None:
            return StreamOffsets(None, {only: offset})
        # A stream of one topic that is to read others, too.
        owners = [topic for topic in self._topics() if self._stream(topic, self._options.group).owns(offset)]
        if not owners:
            raise InvalidArgument(
                "the checkpoint is of one topic and group, which are not those of this stream: give the "
                "stream a checkpoint of its own"
            )
        return StreamOffsets(None, {owners[0]: offset})

    def _require_same_kind_of_group(self, *, is_drawn: bool) -> None:
        if is_drawn and self._options.group:
            raise InvalidArgument(
                "the checkpoint has a group of its own: leave the option group out as before, or give the "
                "stream a new checkpoint"
            )
        if not is_drawn and not self._options.group:
            raise InvalidArgument(
                "the options gave this checkpoint its group: leave the option group as it was, or give the "
                "stream a new checkpoint"
            )

    def _begun(self, offsets: StreamOffsets, topics: Sequence[str] | Mapping[str, Any] = ()) -> StreamOffsets:
        """The offsets with those of the topics that the stream meets now, and without topics it has left."""
        wanted = list(topics or self._topics())
        if self._options.pattern is not None:
            # One that is deleted ends the stream.
            wanted += [topic for topic in offsets.topics if topic not in wanted]
        found = dict(offsets.topics)
        for topic in wanted:
            if topic not in found:
                stream = self._stream(topic, offsets.group)
                found[topic] = stream.begin(is_found_later=offsets.is_begun)
        return replace(offsets, topics={topic: found[topic] for topic in wanted}, is_begun=True)

    def _begin_look(self, begin: StreamOffsets) -> None:
        if begin.topics:
            keys = [self._stream(topic, begin.group).key for topic in begin.topics]
            name = min(offset.stream for offset in begin.topics.values())
            self._rest.begin_look(keys, f"spark-stream/{name}")

    def _latest(self, begin: StreamOffsets) -> StreamOffsets:
        """How far a stream may read."""
        begins = self._by_topic(begin)
        if self._ends_with_available and self._targets is None:
            self._targets = stream_latest.targets_of(self._broker, begins)
        if self._targets is not None:
            # A topic that is made after the query has begun is none of the targets.
            begins = {stream: offset for stream, offset in begins.items() if stream in self._targets}
        return self._moved(begin, stream_latest.released(self._broker, begins, self._targets))

    def _cut(
        self, begin: StreamOffsets, latest: StreamOffsets, messages: int | None, body_bytes: int | None
    ) -> StreamOffsets:
        """How far a stream reads that may read up to ``latest``, with these limits."""
        begins, until = self._by_topic(begin), self._by_topic(latest)
        return self._moved(latest, stream_latest.cut(self._broker, begins, until, messages, body_bytes))

    def _by_topic(self, offsets: StreamOffsets) -> stream_latest.Offsets:
        return {self._stream(topic, offsets.group): offset for topic, offset in offsets.topics.items()}

    def _moved(self, offsets: StreamOffsets, moved: stream_latest.Offsets) -> StreamOffsets:
        topics = {stream.topic: offset for stream, offset in moved.items()}
        return replace(offsets, topics={**offsets.topics, **topics})

    def _ranges(self, begin: StreamOffsets, until: StreamOffsets) -> list[StreamRange]:
        """The queues with messages between two offsets."""
        return list(
            chain.from_iterable(
                self._stream(topic, until.group).ranges(begin.topics[topic], offset)
                for topic, offset in until.topics.items()
            )
        )

    def _cuts(
        self, ranges: Sequence[StreamRange], group: str | None
    ) -> Callable[[int], list[tuple[StreamRange, int]]]:
        """Cuts ranges into parts of at most so many messages."""
        return lambda messages: [
            cut for part in ranges for cut in self._stream(part.topic, group).cut(part, messages)
        ]

    def _waits_for_more(self, begin: StreamOffsets, latest: StreamOffsets) -> bool:
        """Whether a micro-batch is put off, as too few messages are released. Not with ``availableNow``."""
        options = self._options
        if options.min_messages == 1 or self._ends_with_available or self._triggered_at is None:
            return False
        if time.monotonic() - self._triggered_at >= options.max_delay.total_seconds():
            return False
        return self._cut(begin, latest, options.min_messages - 1, None) == latest
