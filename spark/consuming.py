"""``consume``: a leased batch for a block, acked at its end and nacked after an error."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from duewheel.spark.batch import Batch
from duewheel.spark.outages import through_outage
from duewheel.spark.read_options import DEFAULT_PARTITIONS
from duewheel.spark.session import ended_with_the_lease, jobs_of_block, register
from duewheel.spark.submitted import submitted_batch
from duewheel.store.broker import Broker
from duewheel.store.values.errors import DueWheelError, InvalidArgument
from duewheel.store.values.numbers import counted
from duewheel.store.values.reasons import as_reason

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)


@contextmanager
def consume(
    spark: SparkSession | None = None,
    dsn: str | None = None,
    topic: str | None = None,
    group: str | None = None,
    *,
    tags: str | None = None,
    filter: str | None = None,  # noqa: A002 -- as the consumer's parameter
    max_messages: int = 100_000,
    columns: Sequence[str] | None = None,
    invisible: timedelta = timedelta(minutes=1),
    partitions: int = DEFAULT_PARTITIONS,
    min_partitions: int = 1,
    max_bytes_per_partition: int | None = None,
    name: str | None = None,
) -> Iterator[Batch]:
    """Lease the messages that are ready, keep the lease alive, and answer it at the end of the block.

    Without an error the messages that the block has not answered are acked. After an error they are nacked:
    delivered again, or dead letters after their last retry. When the block is interrupted, as by Ctrl+C,
    they are ready again at once, as the same attempt. If the lease is lost, the jobs of the block are ended.

    Without arguments it gives the batch of ``SparkConsumeMessagesOperator(application=...)`` to the program
    that the operator runs. The operator answers that batch, by the exit code of the program.

    Args:
        spark: a session, classic or Connect.
        dsn: the broker's database, as the driver and the executors reach it.
        topic: the topic; the group's retries of it are first.
        group: the consumer group; made when it does not exist yet, from the earliest message on.
        tags: only messages with one of these tags, as ``"a || b"``; ``*`` means all. Set if the group is new;
            None takes those of its subscription.
        filter: only messages with such properties, as ``$.region == "north" && $.amount > 100``.
        max_messages: how many to lease at most; no upper limit.
        columns: names of the columns to read; the others do not leave the database. None is all.
        invisible: how long the leases last when this process dies, 1 s to 12 h.
        partitions: the largest number of partitions.
        min_partitions: the smallest, however few messages each then has, for work that is slow for each
            message; up to ``partitions``. With 1, a partition has 100 messages or more.
        max_bytes_per_partition: about how many bytes the bodies of a partition have at most, by the size of
            the first messages; there are more than ``partitions`` if the messages need it.
        name: the holder of the leases, as the history of a message shows it.

    Returns:
        The :class:`~duewheel.spark.batch.Batch`, which is false when no message was ready.

    Raises:
        UnknownTopic: the topic does not exist.
        InvalidTagExpression, InvalidFilter: the tags or the filter cannot be understood.
        InvalidArgument: a number, a duration or a column is wrong; or nothing is given, and the operator does
            not run this program.
        LeaseLost: the lease ended before the block did; its messages are delivered again.

    Example::

        with consume(spark, dsn, "order-timeout", "counter", columns=["tag"]) as batch:
            batch.messages.groupBy("tag").count().write.mode("append").saveAsTable("timeouts")
    """
    if spark is None and dsn is None and topic is None and group is None:
        with submitted_batch() as batch:
            yield batch
        return
    if spark is None or dsn is None or topic is None or group is None:
        raise InvalidArgument("give spark, dsn, topic and group; only an operator's application gives none")
    register(spark)
    with Broker(dsn) as broker:
        batch = Batch.take(
            broker,
            topic,
            group,
            tags=tags,
            filter=filter,
            max_messages=max_messages,
            invisible=invisible,
            partitions=partitions,
            min_partitions=min_partitions,
            max_bytes_per_partition=max_bytes_per_partition,
            name=name,
        ).on(spark, columns)
        try:
            with (
                batch.kept_alive() as keeper,
                jobs_of_block(spark) as end_jobs,
                ended_with_the_lease(keeper.lost.is_set, end_jobs),
            ):
                try:
                    yield batch
                except Exception as error:
                    if keeper.error is not None:
                        raise keeper.error from error
                    raise
        except BaseException as error:
            _give_back(batch, error)
            raise
        if not batch.answered:
            through_outage(batch.ack_unanswered, invisible)


def _give_back(batch: Batch, error: BaseException) -> None:
    """Give back what the block has not answered, and leave ``error`` to be raised."""
    if batch.in_open_transaction():
        log.warning(
            "The block ended with its transaction open; its %s are delivered when their lease ends",
            counted(batch.count, "message"),
        )
        return
    # An ack in a transaction that was rolled back does not count.
    acked = batch.answered
    answer = batch.nack if isinstance(error, Exception) else batch.give_back
    try:
        answer(reason=as_reason(error))
    except DueWheelError as refused:
        if not acked:
            log.warning("Could not give back all of %s: %s", counted(batch.count, "message"), refused)
