"""A batch of leased messages in the hands of a Spark driver: how it is taken, read and worked on.

No message is sent to the driver. The driver holds the leases, a few numbers each, and hands them to the
data source. When the work is done it answers them (:mod:`duewheel.spark.held_leases`): ack, nack, or ack
inside the transaction that does the work.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Self

from pyspark.sql import DataFrame, SparkSession

from duewheel.spark.data_source import FORMAT
from duewheel.spark.frame_work import FrameWork
from duewheel.spark.held_leases import HeldLeases
from duewheel.spark.lease_partition import DEFAULT_BATCH_BYTES
from duewheel.spark.lease_plan import deal_out, plan_leases
from duewheel.spark.lease_states import handle_prefix
from duewheel.spark.leasing import Partitioning, lease_messages, leased_body_bytes
from duewheel.spark.message_columns import ALL_COLUMNS, check_columns
from duewheel.spark.partition_work import FailedPart, Part, PartitionsFailed, PartitionWork, Work, dumped
from duewheel.spark.read_options import DEFAULT_PARTITIONS
from duewheel.spark.rejecting import reject_of_batch
from duewheel.store.broker import Broker
from duewheel.store.consuming.consumer import Consumer
from duewheel.store.database.connections import with_ends
from duewheel.store.leases import to_json
from duewheel.store.values.errors import InvalidArgument
from duewheel.store.values.leases import Lease

if TYPE_CHECKING:
    from collections.abc import Sequence

log = logging.getLogger(__name__)


class Batch(HeldLeases):
    """Leased messages that Spark works on; :func:`duewheel.spark.consume` and the operator make it.

    The batch is false when no message was ready.

    Attributes:
        count: how many messages it has.
        spark: the session.

    Example::

        with consume(spark, dsn, "order-timeout", "canceller") as batch:
            batch.messages.join(orders, "key").write.saveAsTable("late_orders")
    """

    spark: SparkSession

    def __init__(
        self,
        broker: Broker,
        consumer: Consumer,
        leases: list[Lease],
        invisible: timedelta,
        partitions: int,
        min_partitions: int = 1,
    ) -> None:
        super().__init__(broker, consumer, leases, invisible)
        self.partitions = partitions
        self.min_partitions = min_partitions
        self._columns = ALL_COLUMNS

    @classmethod
    def take(
        cls,
        broker: Broker,
        topic: str,
        group: str,
        *,
        tags: str | None = None,
        filter: str | None = None,  # noqa: A002 -- as the consumer's parameter
        max_messages: int = 10_000,
        invisible: timedelta = timedelta(minutes=1),
        partitions: int = DEFAULT_PARTITIONS,
        min_partitions: int = 1,
        max_bytes_per_partition: int | None = None,
        now: datetime | None = None,
        name: str | None = None,
    ) -> Batch:
        """Lease the messages that are ready; the parameters are those of :func:`duewheel.spark.consume`.

        Args:
            broker: where the messages are; it has to stay open as long as the batch is used.
            now: the instant to take for now; None is the database's clock.
        """
        wanted = Partitioning(partitions, min_partitions, max_bytes_per_partition)
        consumer = broker.consumer(topic, group, tags=tags, filter=filter, name=name)
        leases, body_bytes = lease_messages(
            broker, consumer, wanted, max_messages=max_messages, invisible=invisible, now=now
        )
        count = sum(lease.count for lease in leases)
        return cls(broker, consumer, leases, invisible, *wanted.for_bodies(body_bytes, count))

    @classmethod
    def taken_over(
        cls,
        broker: Broker,
        consumer: Consumer,
        leases: list[Lease],
        invisible: timedelta,
        wanted: Partitioning,
    ) -> Batch:
        """The batch of leases that are held, as by the try before this one."""
        count = sum(lease.count for lease in leases)
        body_bytes = leased_body_bytes(broker, leases)
        return cls(broker, consumer, leases, invisible, *wanted.for_bodies(body_bytes, count))

    def on(self, spark: SparkSession, columns: Sequence[str] | None = None) -> Self:
        """The batch with the session that works on it, and the columns to read; None is all.

        Raises:
            InvalidArgument: the column does not exist.
        """
        self.spark = spark
        self._columns = ALL_COLUMNS if columns is None else check_columns(columns)
        return self

    @property
    def messages(self) -> DataFrame:
        """The messages, with the columns of :data:`duewheel.spark.message_columns.SPARK_SCHEMA` that were
        asked for. Each access makes another one, without the messages that were rejected before it."""
        return self._read(self._not_given_back(), self._columns)

    def _read(
        self, leases: Sequence[Lease], columns: Sequence[str], *, with_answered: bool = False
    ) -> DataFrame:
        return (
            self.spark.read.format(FORMAT)
            .option("dsn", self._broker.dsn)
            .option("lease", to_json(leases))
            .option("partitions", str(self.partitions))
            .option("minPartitions", str(self.min_partitions))
            .option("withAnswered", str(with_answered).lower())
            .option("columns", ",".join(columns))
            .load()
        )

    def foreach_partition(self, work: Work, frame: DataFrame | None = None) -> int:
        """Work on each part of the batch on an executor, and ack it in the transaction of its work.

        The effect of each message is committed once, even when Spark runs a task again or twice at the same
        time, or an executor or the driver is killed. A part whose work fails does not stop the others.

        Args:
            work: called in a task with a psycopg2 connection to the broker's database, in an open
                transaction, and the rows of the part as Arrow batches. It works in that transaction and
                leaves it open. It may reject single messages there with ``duewheel.nack``. It is pickled.
            frame: the rows to work on: any DataFrame that has kept the column ``receipt_handle``, as after a
                join. A part has all rows of the messages of one lease, and only their messages are acked.
                None is the messages of the batch, which are read without a shuffle.

        Returns:
            How many messages are done.

        Raises:
            PartitionsFailed: the function raised in some parts. They are rolled back and unanswered; the
                others are acked.
            InvalidArgument: the frame has no column ``receipt_handle``.
            LeaseLost: a lease ended before the work began.

        Example::

            def cancel(connection, batches):
                for batch in batches:
                    due = [int(key) for key in batch["key"].to_pylist()]
                    with connection.cursor() as cursor:
                        cursor.execute("update orders ... where number = any (%s::bigint[])", (due,))

            with consume(spark, dsn, "order-timeout", "canceller", columns=["key"]) as batch:
                batch.foreach_partition(cancel)
        """
        with self._own.under_way():
            done, failures, parts = self._worked(dumped(work), frame)
        self._reasons = {lease: failure.reason for failure in failures for lease in failure.leases}
        if failures:
            log.error("A partition failed:\n%s", failures[0].trace)
            raise PartitionsFailed(failures, done, parts)
        if frame is None:
            self.note_answered(all_of_it=True)
        return done

    def _worked(self, work: bytes, frame: DataFrame | None) -> tuple[int, list[FailedPart], int]:
        """How many messages are done, the parts that failed, and how many there were."""
        dsn = with_ends(self._broker.dsn)
        if frame is not None:
            leases = {handle_prefix(lease): lease for lease in self.leases}
            return FrameWork(dsn, leases, work).run(frame, self.partitions)
        held = {lease.place: lease for lease in self.leases}
        with self._broker.connection() as connection:
            planned = plan_leases(connection, self.leases)
        if not planned:
            return 0, [], 0
        parts = tuple(
            Part(dealt, tuple(held[lease.topic_id, lease.queue, lease.n] for lease in dealt.leases))
            for dealt in deal_out(planned, self.partitions, self.min_partitions)
        )
        return PartitionWork(dsn, parts, work, DEFAULT_BATCH_BYTES, self._columns).run(self.spark)

    def reject(
        self, messages: DataFrame, reason: str | None = None, *, delay: timedelta | None = None
    ) -> int:
        """Give back some of the messages: each is delivered again, or is a dead letter after its last retry.

        The other messages stay as they are, to be worked on or acked afterwards: each action reads the batch
        without the messages rejected before it. The messages are looked up and answered on the executors.
        None is rejected unless all belong to this batch. Rejecting a message again changes nothing. Once all
        messages of a lease are rejected, they can be named by their receipt handles only, not by message ids.

        Args:
            messages: a DataFrame with the column ``receipt_handle`` or ``message_id``, and the column
                ``reason`` where there is one.
            reason: why, if the column is missing or null.
            delay: until the next delivery, from now; None is the group's interval for that retry.

        Returns:
            How many messages are rejected.

        Raises:
            InvalidArgument: a column is missing, no reason is given, a message does not belong to this batch
                or is acked, or the topic is of type FIFO.
            LeaseLost: a lease had ended.

        Example::

            batch.reject(batch.messages.where("key is null"), "no key")
        """
        if self._consumer.is_fifo:
            raise InvalidArgument(
                f"topic {self._consumer.topic!r} is of type FIFO, where no single message can be rejected: "
                "the messages behind it in its message group would be worked on first. Nack the batch"
            )
        self.let_others_reject()
        read = partial(self._read, with_answered=True)
        return reject_of_batch(self._broker, self.leases, read, self._own, messages, reason, delay)
