"""A batch of leased messages in the hands of a Spark driver: the DataFrame, and the answers to its lease.

The messages never come to the driver. It holds the leases, a few numbers each, hands them to the data source
and answers them when the work is done: ack, nack, or ack inside the transaction that does the work.

While the work goes on, :meth:`LeasedBatch.kept_alive` extends the leases. An ack in a transaction stops that
first: from then on the broker waits for the transaction's end before it gives the messages to anybody else.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, cast

from psycopg2.extensions import TRANSACTION_STATUS_IDLE
from pyspark.sql import DataFrame, SparkSession

from duewheel.spark.data_source import DEFAULT_PARTITIONS, FORMAT, MESSAGES_WORTH_A_PARTITION
from duewheel.spark.leasing import MESSAGES_PER_LEASE, lease_messages
from duewheel.store.broker import Broker
from duewheel.store.connections import DriverConnection, driver_connection
from duewheel.store.consumer import Consumer
from duewheel.store.lease_keeper import LeaseKeeper
from duewheel.store.leases import Lease, to_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duewheel.store.connections import CallerConnection
    from duewheel.store.messages import Message


class LeasedBatch:
    """Leased messages that are read as a DataFrame and answered as a whole.

    It is false when nothing was ready. Make one with :meth:`take`.

    Attributes:
        leases: the leases, to be passed on with :func:`duewheel.store.leases.to_json`.
        count: how many messages they cover.
        answered: whether :meth:`ack` or :meth:`nack` was called and not refused. Of an answer inside a
            transaction that was rolled back later, the broker knows nothing.

    Example::

        batch = LeasedBatch.take(broker, "order-timeout", "canceller", max_messages=1_000_000)
        with batch.kept_alive():
            batch.dataframe(spark).join(orders, "key").write.saveAsTable("late_orders")
        batch.ack()

    Rules: X09, X10, X11, R03.
    """

    def __init__(
        self, broker: Broker, consumer: Consumer, leases: list[Lease], invisible: timedelta, partitions: int
    ) -> None:
        self.leases = leases
        self.count = sum(lease.count for lease in leases)
        self.answered = False
        self._broker = broker
        self._consumer = consumer
        self._invisible = invisible
        self._partitions = partitions
        self._keeper: LeaseKeeper | None = None
        self._transaction: DriverConnection | None = None

    @classmethod
    def take(
        cls,
        broker: Broker,
        topic: str,
        group: str,
        *,
        tags: str = "*",
        filter: str | None = None,  # noqa: A002 -- as the consumer's parameter
        max_messages: int = 10_000,
        invisible: timedelta = timedelta(minutes=1),
        partitions: int = DEFAULT_PARTITIONS,
        now: datetime | None = None,
        name: str | None = None,
    ) -> LeasedBatch:
        """Lease what is ready.

        Args:
            broker: where the messages are; it has to stay open as long as the batch is used.
            topic: the topic to lease from; the group's retries of it come first.
            group: the consumer group; made when it does not exist yet, from the earliest message on.
            tags: only messages with one of these tags, as ``"a || b"``; ``*`` means all (D12).
            filter: only messages with such properties, as ``"region = 'north' AND amount > 100"`` (D12).
            max_messages: how many to lease at most; no upper limit.
            invisible: how long the leases last without an extension, 1 s to 12 h (D07).
            partitions: into how many partitions the DataFrame is dealt out at most.
            now: the instant to take for now; None is the database's clock (X13).
            name: says who holds the leases, for the history of a message.

        Raises:
            UnknownTopic: there is no such topic.
            InvalidTagExpression, InvalidFilter: the tags or the filter cannot be understood.
            InvalidArgument: a number or a duration is out of its limits.
        """
        consumer = broker.consumer(topic, group, tags=tags, filter=filter, name=name)
        # One lease is read by one task: a single queue is to give work to all of them too.
        share = max(MESSAGES_WORTH_A_PARTITION, math.ceil(max_messages / max(1, partitions)))
        leases = lease_messages(
            broker,
            consumer,
            max_messages=max_messages,
            invisible=invisible,
            messages_per_lease=min(MESSAGES_PER_LEASE, share),
            now=now,
        )
        return cls(broker, consumer, leases, invisible, partitions)

    def __bool__(self) -> bool:
        return bool(self.leases)

    @property
    def expires_at(self) -> datetime | None:
        """When the first lease ends unless extended, in UTC, as known when taken; None without leases."""
        return min((lease.expires_at for lease in self.leases), default=None)

    def dataframe(self, spark: SparkSession) -> DataFrame:
        """The messages, with the columns of :data:`duewheel.spark.message_columns.SPARK_SCHEMA`.

        Args:
            spark: a session that knows the data source (:func:`duewheel.spark.session.register`), classic or
                Connect. The broker's address has to be reachable from its executors.
        """
        return (
            spark.read.format(FORMAT)
            .option("dsn", self._broker.dsn)
            .option("lease", to_json(self.leases))
            .option("partitions", str(self._partitions))
            .load()
        )

    @contextmanager
    def kept_alive(self) -> Iterator[LeaseKeeper]:
        """Extend the leases until the block is left, or the batch is answered inside it.

        The keeper says whether they were lost meanwhile (``lost``, ``raise_if_lost``).
        """
        with LeaseKeeper(self._consumer, cast("Sequence[Message]", self.leases), self._invisible) as keeper:
            self._keeper = keeper
            try:
                yield keeper
            finally:
                self._keeper = None

    def ack(self, connection: CallerConnection | None = None) -> None:
        """Say that the work on all messages is done (X09).

        Args:
            connection: a psycopg2 connection, or a SQLAlchemy ``Connection`` or ``Session``, in whose
                transaction to ack: the work and the ack are then committed, or rolled back, together.

        Raises:
            LeaseLost: the lease had ended; nothing is changed, and the transaction cannot go on (X10).

        Example::

            with closing(psycopg2.connect(dsn)) as connection, connection:
                cancel_orders(connection, unpaid)
                batch.ack(connection)
        """
        self._stop_keeper()
        if connection is not None:
            self._transaction = driver_connection(connection)
        self.answered = True
        try:
            self._consumer.ack(self.leases, connection=connection)
        except BaseException:
            self.answered = False
            raise

    def nack(self, delay: timedelta | None = None, *, reason: str | None = None) -> None:
        """Give all messages back: each comes again, or is a dead letter after its last retry (R03).

        Args:
            delay: when they come again, counted from now; None is the group's interval for that retry (R05).
            reason: kept with the retry, for the message's history.

        Raises:
            LeaseLost: the lease had ended, or was acked.
        """
        self._stop_keeper()
        self._consumer.nack(self.leases, delay, reason=reason)
        self.answered = True

    def in_open_transaction(self) -> bool:
        """Whether an ack was made in a transaction that has not ended: another answer would wait for its
        end."""
        transaction = self._transaction
        return (
            transaction is not None
            and not transaction.closed
            and transaction.info.transaction_status != TRANSACTION_STATUS_IDLE
        )

    def _stop_keeper(self) -> None:
        # An extension beside an answer would find the lease gone and call it lost.
        if self._keeper is not None:
            self._keeper.stop()
