"""``df.write.format("duewheel")`` and ``writeStream``: a Spark job sends all of its messages or none, and
each once.

Each task stages its rows: it copies them, in one transaction, into a table that no consumer reads. A task
that runs again, or twice at the same time, stages a new part each time. When all tasks are done, Spark's
driver holds the number of one part for each partition. One call then publishes exactly these parts in one
transaction: before it no message exists, after it all of them do. Parts staged in vain, by tasks that ran
twice or by executors and drivers that died, are discarded afterwards, or by the broker's upkeep after seven
days.

The call also notes that the batch was published. A driver whose connection breaks asks again and reads it.
A micro-batch that Spark runs again after a crash is not sent again: the note names the id of the query, which
the checkpoint keeps, and the number of the micro-batch. A job other than a stream has no such name unless
``idempotencyKey`` gives it one; a job that runs again with the same key sends nothing.

Where a column names the topic of each row, a task stages a part for each topic that it meets, and the one
transaction publishes a batch on each of them.

The order of messages of a FIFO topic is the order of the partitions, and that of the rows in each.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import chain
from typing import TYPE_CHECKING

import adbc_driver_manager
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StringType
from pyspark.taskcontext import TaskContext

from duewheel.spark.message_reader import arrow_connection
from duewheel.spark.statements import statement
from duewheel.spark.told_errors import told_first
from duewheel.spark.written_columns import (
    NO_PART,
    StagedParts,
    TopicPart,
    staged_batches,
    staged_schema,
    written_columns,
)
from duewheel.store.broker import Broker
from duewheel.store.database.connections import fetch, transaction
from duewheel.store.values.backoff import Backoff
from duewheel.store.values.errors import (
    BrokerUnreachable,
    DueWheelError,
    InvalidArgument,
    NotAllowed,
    StagingFailed,
    UnknownTopic,
)

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from duewheel.spark.write_options import WriteOptions
    from duewheel.store.database.connections import DriverConnection

log = logging.getLogger(__name__)

_STAGE = statement("stage_part")
_PUBLISH = statement("publish_batch")
_DISCARD = statement("discard_staged")
_TOPIC = statement("write_topic")

_TRIES = 8
_KEEP = timedelta(days=365)
_KEEP_NAMELESS = timedelta(days=1)
"""How long the note of a job without a key is kept: long enough for its driver, the only one that knows the
job's name, to ask again."""
_QUERY_ID = "sql.streaming.queryId"
_KEYED = "key/"


@dataclass(frozen=True)
class StagedPart(WriterCommitMessage):
    """The rows that one task has staged.

    Attributes:
        staging: the name under which they are staged.
        parts: the part of each topic.
        error: the mistake in the messages, if running the task again would not mend it.
    """

    staging: str
    parts: Mapping[str, TopicPart] = field(default_factory=dict)
    error: DueWheelError | None = None


@dataclass(frozen=True)
class _Writing:
    """The steps that tasks and driver take for a batch and for a micro-batch alike."""

    dsn: str = field(repr=False)
    # None where a column names the topic of each row.
    topic: str | None
    columns: tuple[str, ...]
    # As Broker.send of a str has it: a body without a content type is text.
    are_texts: bool

    def stage(self, staging: str, batches: Iterator[pa.RecordBatch]) -> StagedPart:
        """Stage a task's rows in one transaction."""
        filled = (batch for batch in batches if batch.num_rows)
        first = next(filled, None)
        if first is None:
            return StagedPart(staging)
        task = TaskContext.get()
        partition = 0 if task is None else task.partitionId()
        parts = StagedParts(self.topic)
        rows = _Rows(staged_batches(chain((first,), filled), self.columns, parts, partition))
        try:
            self._copy(staging, parts, rows)
        except adbc_driver_manager.Error as error:
            if rows.error is not None:
                if isinstance(rows.error, DueWheelError):
                    return StagedPart(staging, error=rows.error)
                raise rows.error from None
            if (error.sqlstate or "").startswith("22"):
                # Postgres cannot take the data, such as text that is not JSON.
                return StagedPart(staging, error=InvalidArgument(_refused(error, partition)))
            # Spark runs the task again. The driver's traceback adds nothing to the server's message.
            raise StagingFailed(
                f"the messages of a task were not staged ({_one_line(error)}), and nothing was sent: when "
                "the broker can be reached from the executors, run the job again"
            ) from None
        return StagedPart(staging, dict(parts.by_topic))

    def _copy(self, staging: str, parts: StagedParts, rows: _Rows) -> None:
        options = {
            adbc_driver_manager.StatementOptions.INGEST_TARGET_TABLE.value: "staged_message",
            adbc_driver_manager.StatementOptions.INGEST_TARGET_DB_SCHEMA.value: "duewheel",
            adbc_driver_manager.StatementOptions.INGEST_MODE.value: "adbc.ingest.mode.append",
        }
        with arrow_connection(self.dsn) as connection:
            connection.set_autocommit(False)
            with adbc_driver_manager.AdbcStatement(connection) as statement:
                # The login's defaults may be others.
                statement.set_sql_query("set transaction isolation level read committed, read write")
                statement.execute_update()
            with adbc_driver_manager.AdbcStatement(connection) as statement:
                statement.set_options(**options)
                reader = pa.RecordBatchReader.from_batches(staged_schema(self.columns), rows)
                statement.bind_stream(reader)
                statement.execute_update()
            with adbc_driver_manager.AdbcStatement(connection) as statement:
                part_ids = ", ".join(str(part.part_id) for part in parts.by_topic.values())
                statement.set_sql_query(_STAGE.format(staging=staging, part_ids=part_ids))
                statement.execute_update()
            connection.commit()

    def publish(
        self, writer: str, batch: int, parts: Sequence[StagedPart], keep: timedelta, key: str | None = None
    ) -> None:
        """Send the messages of the parts, unless the writer's batch was sent before.

        Raises:
            InvalidArgument: the job with this key sent another number of messages before.
        """
        for part in parts:
            if part.error is not None:
                raise part.error
        backoff = Backoff()
        for tried in range(1, _TRIES + 1):
            try:
                with Broker(self.dsn) as broker, broker.connection() as connection:
                    with transaction(connection):
                        answers = [
                            (topic, count, *self._publish(connection, topic, writer, batch, parts, keep))
                            for topic, count in self._counts(parts).items()
                        ]
                    _discard(connection, {part.staging for part in parts})
                break
            except BrokerUnreachable:
                # The commit may have happened or not. The broker knows when it is asked again.
                if tried == _TRIES:
                    raise
                time.sleep(backoff.next_seconds())
        for topic, count, sent, before in answers:
            if sent is not None:
                continue
            if key is None:
                log.info("Batch %s of %s was sent to %s before: nothing is sent again", batch, writer, topic)
            elif tried == 1:
                log.warning(
                    "the job with the idempotencyKey %r sent %d messages to topic %r before: its %d "
                    "messages are not sent again",
                    *(key, before, topic, count),
                )

    def _counts(self, parts: Sequence[StagedPart]) -> dict[str, int]:
        """How many messages each topic gets, in an order that all writers have, as each locks the topics."""
        counts = Counter({self.topic: 0} if self.topic is not None else {})
        for part in parts:
            counts.update({topic: staged.count for topic, staged in part.parts.items()})
        return dict(sorted(counts.items()))

    def _publish(
        self,
        connection: DriverConnection,
        topic: str,
        writer: str,
        batch: int,
        parts: Sequence[StagedPart],
        keep: timedelta,
    ) -> tuple[int | None, int | None]:
        """Send the messages of one topic; how many were sent, or else how many were sent before.

        Raises:
            InvalidArgument: the writer's batch had another number of messages before.
        """
        # Empty parts, too: an error names a part by its place.
        staged = [part.parts.get(topic, NO_PART) for part in parts]
        part_ids, counts = [part.part_id for part in staged], [part.count for part in staged]
        given = (topic, writer, batch, part_ids, counts, keep, self.are_texts)
        try:
            ((sent, before),) = fetch(connection, _PUBLISH, given)
        except DueWheelError as error:
            if self.topic is None and str(error).startswith("row "):
                raise type(error)(f"of the rows for topic {topic!r}, {error}") from None
            raise
        if before not in (None, sum(counts)) and writer.startswith(_KEYED):
            raise InvalidArgument(
                f"the idempotencyKey {writer.removeprefix(_KEYED)!r} sent {before} messages to topic "
                f"{topic!r} before, and this job has {sum(counts)}: nothing was sent. Give a job with other "
                "rows a key of its own"
            )
        return sent, before

    def discard(self, stagings: set[str]) -> None:
        """Discard the staged messages."""
        with Broker(self.dsn) as broker, broker.connection() as connection:
            _discard(connection, stagings)


def _discard(connection: DriverConnection, stagings: set[str]) -> None:
    for staging in stagings:
        while fetch(connection, _DISCARD, (staging,))[0][0]:
            pass


@told_first
class MessageWriter(DataSourceArrowWriter):
    """Writes one DataFrame; made on the driver, where it checks the columns."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._writing = _checked(options, schema)
        self._staging = f"job/{secrets.token_hex(16)}"
        self._key = options.idempotency_key

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedPart:
        """Stage the rows of a partition, on an executor."""
        return self._writing.stage(self._staging, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Send the messages that all tasks have staged, on the driver."""
        writer, keep = self._staging, _KEEP_NAMELESS
        if self._key is not None:
            writer, keep = f"{_KEYED}{self._key}", _KEEP
        self._writing.publish(writer, 0, _staged(messages), keep, self._key)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Discard the staged messages, as the job has failed."""
        del messages
        self._writing.discard({self._staging})


@told_first
class MessageStreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a query; one writer for each, and another to commit it."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._writing = _checked(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedPart:
        """Stage the rows of a partition under the name of its query, on an executor."""
        context = TaskContext.get()
        query_id = None if context is None else context.getLocalProperty(_QUERY_ID)
        if query_id is None:
            raise InvalidArgument("the task names no streaming query: write with writeStream")
        return self._writing.stage(f"query/{query_id}", iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        """Send the messages that all tasks of a micro-batch have staged, on the driver."""
        parts = _staged(messages)
        if parts:
            self._writing.publish(parts[0].staging, batchId, parts, _KEEP)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's
        """Discard the staged messages, as the micro-batch has failed; Spark runs it again."""
        del batchId
        self._writing.discard({part.staging for part in _staged(messages)})


class _Rows:
    """Batches on their way into COPY, and the error that ended them."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self.error: Exception | None = None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._batches
        except Exception as error:
            # The reader of COPY would turn the exception into text.
            self.error = error
            raise


def _checked(options: WriteOptions, schema: StructType) -> _Writing:
    with Broker(options.dsn) as broker, broker.connection() as connection:
        ((message_type, may_send),) = fetch(connection, _TOPIC, (options.topic,))
    if options.topic is not None and message_type is None:
        raise UnknownTopic(
            f'topic "{options.topic}" does not exist: make it with create_topic, or correct the name'
        )
    if not may_send:
        raise NotAllowed("this login may not send: grant it the role duewheel_producer")
    columns = written_columns(schema, options.topic, message_type)
    body = schema.fields[columns.index("body")]
    return _Writing(options.dsn, options.topic, columns, isinstance(body.dataType, StringType))


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[StagedPart]:
    return [message for message in messages if isinstance(message, StagedPart)]


def _refused(error: Exception, partition: int) -> str:
    """The server's words for a row that COPY did not take."""
    said = _one_line(error).rpartition("PGRES_FATAL_ERROR ")[2]
    # The server may speak another language.
    line = re.search(r"COPY staged_message, \w+ (\d+)", said)
    return said if line is None else f"row {int(line[1]) - 1} of partition {partition}: {said}"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
