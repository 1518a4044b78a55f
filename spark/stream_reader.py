"""``spark.readStream.format("duewheel")``: released messages, as a stream whose offsets are places in the
release log.

A tick states for good which messages it released. So the messages between two places of a queue are the same
whenever they are read, by a task that runs again or by a query that restarts from its checkpoint. The stream
takes no leases and answers nothing. The checkpoint is the truth. When Spark has finished a micro-batch, the
group's position follows, so that monitoring sees the group's lag and retention keeps unread messages.

Messages whose transaction was committed late come as stragglers, in a stream of their own beside each queue.
Retries of the group come through its retry queue, which is one more queue of the offset.

Each question to the broker on the driver may be asked twice with the same effect. So the driver waits through
an outage of the broker, as a restart or a failover is, and asks again.

A stream shares its group with no other reader. Its name is drawn at random when it begins, and stands in each
offset and in each position that it sets. Another reader of the group, or a rewind, leaves a position with
another name. The stream then ends with an error, as each reader would get only a part of the messages.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from duewheel.spark.message_columns import StreamHandle
from duewheel.spark.outages import through_outage
from duewheel.spark.planning import cut_into
from duewheel.spark.statements import statement
from duewheel.spark.stream_place import Place, StreamOffset
from duewheel.store.consuming.ticking import TICK_GROUP
from duewheel.store.database.connections import fetch
from duewheel.store.values.errors import DueWheelError, InvalidArgument, UnknownGroup, UnknownTopic

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from duewheel.spark.read_options import StreamRead
    from duewheel.store.broker import Broker

_START = statement("stream_start")
_LAG = statement("stream_lag")
_LATEST = statement("stream_latest")
_COMMIT = statement("stream_commit")
_CUTS = statement("stream_cuts")
_LOST = statement("stream_lost")
_ROWS = statement("stream_rows")
_WITHIN = statement("stream_within")

FIRST_REST_SECONDS = 0.02
MOST_REST_SECONDS = 0.5
"""The rests of a stream to which nothing comes."""

rest = time.sleep

log = logging.getLogger(__name__)


class StreamDataLost(DueWheelError):
    """Retention has dropped messages that the stream had not read; see ``failOnDataLoss``."""


@dataclass(frozen=True)
class StreamRange(InputPartition):
    """The messages that one task reads: those between two places of a queue."""

    topic_id: int
    queue: int
    start: Place
    end: Place
    handle: StreamHandle


class MessageStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches on the driver and reads them on the executors."""

    def __init__(
        self, options: StreamRead, columns: tuple[str, ...], schema: StructType | None = None
    ) -> None:
        self._options = options
        self._columns = columns
        self._schema = schema
        self._target: StreamOffset | None = None
        self._reached: StreamOffset | None = None
        self._ids: tuple[int, int] | None = None
        self._broker: Broker | None = None
        self._triggered_at: float | None = None
        self._rest_seconds = 0.0

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Begin a new stream and make the group its own.

        Spark asks again until the first micro-batch is finished, even in a restarted query, and the broker
        always gives the same answer.
        """
        options = self._options
        self._release()
        rows = self._ask(_START, *self._subscription(), secrets.token_hex(8), options.start, options.start_at)
        return StreamOffset.of_rows(rows[0][0], [row[1:] for row in rows]).as_dict()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """At most ``maxMessagesPerTrigger`` in a micro-batch where that is given."""
        most = self._options.max_messages
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - its
        """How far the next micro-batch reads.

        Spark asks again at once where the query has no trigger of its own. When nothing came, the next answer
        takes a rest, which doubles up to half a second.
        """
        begin = StreamOffset.of(start)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        if self._rest_seconds and self._target is None:
            rest(self._rest_seconds)
        latest = self._latest(begin, most, self._target)
        self._reached = begin
        if latest == begin or self._waits_for_more(begin, latest):
            self._rest_seconds = min(max(FIRST_REST_SECONDS, 2 * self._rest_seconds), MOST_REST_SECONDS)
            return start
        self._rest_seconds = 0.0
        self._triggered_at = time.monotonic()
        if self._options.max_bytes is not None:
            latest = self._within_bytes(begin, latest, self._options.max_bytes)
        self._reached = latest
        return latest.as_dict()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """How far the stream is behind the releases, by topic; the progress of the query shows it."""
        if self._reached is None:
            return None
        ((messages, seconds),) = self._ask(_LAG, *self._subscription(), *self._reached.parameters())
        return {self._options.topic: {"messagesBehind": messages, "secondsBehind": round(seconds or 0.0, 3)}}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Note how far messages are released now: the query ends there."""
        self._target = self._latest(StreamOffset("", {}), None, None)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Cut the messages between two offsets into parts of about equal size."""
        ranges = self._ranges(StreamOffset.of(start), StreamOffset.of(end))
        if not ranges:
            return []
        self._require_kept(ranges)
        late = [
            replace(part, end=replace(part.start, straggler=part.end.straggler))
            for part in ranges
            if part.end.straggler > part.start.straggler
        ]
        return late + cut_into(partial(self._cut, ranges), self._options.min_partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one part, on an executor."""
        from duewheel.spark.message_batches import as_asked
        from duewheel.spark.unleased import read_unleased

        assert isinstance(partition, StreamRange)
        batches = read_unleased(
            self._options,
            self._columns,
            partition.topic_id,
            partition.queue,
            _ROWS,
            partition.handle,
            from_at=partition.start.at,
            from_seq=partition.start.seq,
            to_at=partition.end.at,
            to_seq=partition.end.seq,
            straggler_from=partition.start.straggler,
            straggler_to=partition.end.straggler,
        )
        yield from as_asked(batches, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Let the group's position follow: Spark has finished everything up to here."""
        offset = StreamOffset.of(end)
        self._ask(_COMMIT, *self._subscription(), offset.stream, *offset.parameters())

    def stop(self) -> None:
        """Close the connections."""
        if self._broker is not None:
            self._broker.close()
            self._broker = None

    def __getstate__(self) -> dict[str, Any]:
        # Executors get the reader, and no connection of the driver.
        return {**self.__dict__, "_broker": None}

    def _opened(self) -> Broker:
        if self._broker is None:
            from duewheel.store.broker import Broker

            self._broker = Broker(self._options.dsn, listen=False)
        return self._broker

    def _subscription(self) -> tuple[int, int]:
        if self._ids is None:
            options = self._options
            consumer = through_outage(
                lambda: self._opened().consumer(options.topic, options.group), options.reconnect
            )
            self._ids = consumer.group_id, consumer.topic_id
        return self._ids

    def _ask(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        def asked() -> list[tuple[Any, ...]]:
            with self._opened().connection() as connection:
                return fetch(connection, statement, parameters)

        return through_outage(asked, self._options.reconnect)

    def _release(self) -> None:
        """Release what is due, where no wheel does."""
        self._ask(TICK_GROUP, *self._subscription(), None)

    def _latest(self, begin: StreamOffset, most: int | None, target: StreamOffset | None) -> StreamOffset:
        """How far a stream may read: at most ``most`` messages, and not beyond the target."""
        group_id, topic_id = self._subscription()
        places = begin.parameters()
        parameters = [topic_id, group_id, topic_id, begin.stream or None, *places, most]
        if target is None:
            self._release()
            parameters += [None] * 4
        else:
            topic_ids, queues, ats, _, stragglers = target.parameters()
            parameters += [topic_ids, queues, ats, stragglers]
        rows = self._ask(_LATEST, *parameters)
        if any(is_deleted for *_, is_deleted in rows):
            raise UnknownTopic(
                f"topic {self._options.topic!r} was deleted while the stream read it: once the topic exists "
                "again, restart the stream with a new checkpoint"
            )
        if rows[0][0] is None:
            raise UnknownGroup(
                f"group {self._options.group!r} of topic {self._options.topic!r} was deleted while the "
                "stream read it: restart the stream with a new checkpoint"
            )
        latest = StreamOffset.of_rows(begin.stream, [row[:-1] for row in rows])
        foreign = set(begin.places) - set(latest.places)
        if foreign:
            raise InvalidArgument(
                f"the checkpoint is of another topic than {self._options.topic!r} or another group than "
                f"{self._options.group!r}, or of one that was deleted and made again: give the stream a "
                "checkpoint of its own"
            )
        return latest

    def _within_bytes(self, begin: StreamOffset, latest: StreamOffset, most: int) -> StreamOffset:
        """How far to read so that the bodies have no more bytes, and in each queue one body more.

        Stragglers are read all the same.
        """
        places = dict(latest.places)
        ranges = self._ranges(begin, latest)
        left = most
        for queues_left, part in zip(range(len(ranges), 0, -1), ranges, strict=True):
            share = -(-left // queues_left)
            at, seq = part.start.at, part.start.seq
            if share > 0:
                asked = (part.topic_id, part.queue, at, seq, part.end.at, part.end.seq, share)
                ((at, seq, used),) = self._ask(_WITHIN, *asked)
                left -= used
            places[part.topic_id, part.queue] = replace(part.end, at=at, seq=seq)
        return StreamOffset(latest.stream, places)

    def _require_kept(self, ranges: Sequence[StreamRange]) -> None:
        ((queues, messages),) = self._ask(
            _LOST,
            *self._subscription(),
            [part.topic_id for part in ranges],
            [part.queue for part in ranges],
            [part.start.at for part in ranges],
        )
        if not queues:
            return
        # Messages dropped after a group has finished them, or was deleted, are not counted.
        many = "messages" if messages is None else f"up to {messages} messages"
        said = (
            f"retention has dropped {many} of topic {self._options.topic!r} that the stream had not read, in "
            f"{queues} of {len(ranges)} queues"
        )
        if self._options.fail_on_data_loss:
            raise StreamDataLost(
                f"{said}: set failOnDataLoss to false to go on with the messages that remain, and give the "
                "topic a longer retention"
            )
        log.warning("%s", said)

    def _ranges(self, begin: StreamOffset, until: StreamOffset) -> list[StreamRange]:
        """The queues in which something lies between two offsets."""
        handle = StreamHandle.of(until.stream, self._subscription()[0])
        return [
            StreamRange(
                topic_id, queue, begin.places.get((topic_id, queue), Place.beginning()), place, handle
            )
            for (topic_id, queue), place in sorted(until.places.items())
            if begin.places.get((topic_id, queue), Place.beginning()) != place
        ]

    def _cut(self, ranges: Sequence[StreamRange], messages: int) -> list[tuple[StreamRange, int]]:
        """Ranges without their stragglers, in parts of at most so many messages, and how many each has."""
        parts = []
        for part in ranges:
            end = part.end
            start = replace(part.start, straggler=end.straggler)
            if start == end:
                continue
            places = (part.topic_id, part.queue, start.at, start.seq, end.at, end.seq)
            cuts = self._ask(_CUTS, *places, messages, self._options.partition_bytes)
            before = start
            for at, seq, count in cuts:
                place = replace(end, at=at, seq=seq)
                parts.append((replace(part, start=before, end=place), count))
                before = place
        return parts

    def _waits_for_more(self, begin: StreamOffset, latest: StreamOffset) -> bool:
        """Whether a micro-batch is put off, as too few messages are released. Not with ``availableNow``."""
        options = self._options
        if options.min_messages == 1 or self._target is not None or self._triggered_at is None:
            return False
        if time.monotonic() - self._triggered_at >= options.max_delay.total_seconds():
            return False
        ranges = self._ranges(begin, latest)
        found = sum(count for _, count in self._cut(ranges, options.min_messages))
        # Stragglers are numbered over all topics: with them the micro-batch may come early.
        found += sum(part.end.straggler - part.start.straggler for part in ranges)
        return found < options.min_messages
