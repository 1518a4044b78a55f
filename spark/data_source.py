"""``spark.read.format("duewheel")``: the messages of a topic, or those of a leased batch, as a DataFrame.

A read without a lease is a look: it reads what the topic has at that moment, for no group. The batch of
:func:`duewheel.spark.consume` sets the option ``lease``. A lease belongs to its DataFrame: counting it twice,
joining it with itself, or reading it again after an executor died always gives the same rows. Nothing is
acked by reading.

The driver asks the broker for the query of each lease and deals the leases out to partitions; the executors
run these queries (:mod:`duewheel.spark.lease_reader`). The dsn travels inside pickled objects only, never in
a plan, in an ``InputPartition`` or in Spark's configuration, so that neither the UI nor a log shows a
password.

The package has to be installed where the executors run. Spark loads a data source, and plans each read, in
Python processes of their own, which end once they are idle for a minute. An action that needs no more rows,
such as ``first()``, ends the Python worker of its task, and the next action begins a new worker, which loads
this module before it reads. So modules that only executors, only planning, or only writers need are imported
where they are used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)

from duewheel.spark.lease_partition import LeasePartition
from duewheel.spark.message_columns import ALL_COLUMNS, columns_of, spark_schema
from duewheel.spark.told_errors import told_first
from duewheel.store.values.errors import InvalidArgument

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from duewheel.spark.lease_partition import LeaseToRead
    from duewheel.store.values.leases import Lease

FORMAT = "duewheel"


@told_first
class DueWheelDataSource(DataSource):
    """The Spark data source ``duewheel``.

    Options, all text:
        dsn: address of the broker's database, as libpq string or URL; reachable from the executors too.
        topic, tags, filter: the messages; the topic also as ``load(topic)``, several with commas between,
            ``tags`` as ``"a || b"``, ``filter`` as ``'$.region == "north"'``, all when left out.
        topicPattern: a regular expression that matches the names of the topics, instead of ``topic``.
        columns: names of the columns wanted, with commas between; all when left out. Other columns do not
            leave the database. ``.schema(...)`` with some of the columns does the same.
        batchBytes: about how large one Arrow batch may become; 4 MiB when left out.
        minPartitions: into how many partitions to cut the messages at least, down to one message each; one
            for each queue when left out, or more above the two limits that follow.
        maxMessagesPerPartition: how many messages a partition has at most; a million when left out.
        maxBytesPerPartition: about how many bytes the bodies of a partition have at most; 128 MiB when left
            out.
        dueFrom, dueUntil: of a look, only messages due at or after the first instant and before the second.
        group: the consumer group of a stream; when left out, one of its own that the checkpoint keeps.
        maxMessagesPerTrigger: how many messages a stream reads in a micro-batch at most, all when left out.
        maxBytesPerTrigger: about how many bytes the bodies of a micro-batch have at most; no limit when left
            out.
        minMessagesPerTrigger: how many released messages a micro-batch waits for; 1 when left out.
        maxTriggerDelay: how long it waits for them, as ``15m``, which is also the default.
        startingOffsets: where a new stream begins: earliest, latest or an instant; the position of its group
            when left out.
        failOnDataLoss: whether a stream fails when retention has dropped messages that it had not read; true
            when left out.
        reconnectSeconds: how long the driver of a stream waits for a broker that cannot be reached, up to a
            week; 600 when left out.
        listen: whether the driver of a stream to which nothing comes hears of releases, on a connection that
            listens; true when left out.

    Errors:
        InvalidArgument: an option is unknown, missing, without effect, or cannot be understood.
            LeaseLost: a lease has ended. UnknownTopic and the other errors of the broker: as they are.

    Example::

        register(spark)
        messages = spark.read.format("duewheel").option("dsn", dsn).load("order-timeout")
    """

    @classmethod
    def name(cls) -> str:
        """The name to give to ``format``."""
        return FORMAT

    def schema(self) -> StructType:
        """The columns; checks the options, the filter, and that the topic exists."""
        from duewheel.spark.read_options import UnleasedRead, read_options

        read = read_options(self.options)
        if isinstance(read, UnleasedRead):
            from duewheel.spark.look_reader import check_choice

            check_choice(read)
        return spark_schema(read.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of leased messages, or of stored ones.

        Raises:
            InvalidArgument: the options are those of a stream. Nothing was leased.
        """
        from duewheel.spark.read_options import LeaseRead, LookRead

        columns = columns_of(schema)
        if "lease" not in self.options:
            from duewheel.spark.look_reader import LookReader

            if self.options.get("group"):
                raise InvalidArgument(
                    "a look reads for no group: leave the group out; to work on the messages of the group, "
                    "take them with duewheel.spark.consume(spark, dsn, topic, group)"
                )
            return LookReader(LookRead.of(self.options), columns, schema)
        read = LeaseRead.of(self.options)
        return LeaseDataReader(
            dsn=read.dsn,
            leases=read.leases,
            partitions=read.partitions,
            min_partitions=read.min_partitions,
            batch_bytes=read.batch_bytes,
            columns=columns,
            with_answered=read.with_answered,
            schema=schema,
        )

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """The reader of a stream, which leases nothing."""
        from duewheel.spark.read_options import StreamRead
        from duewheel.spark.stream_reader import MessageStreamReader

        return MessageStreamReader(StreamRead.of(self.options), columns_of(schema), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """The writer of a DataFrame; see :mod:`duewheel.spark.message_writer`."""
        from duewheel.spark.message_writer import MessageWriter
        from duewheel.spark.write_options import WriteOptions

        _refuse_overwriting(overwrite, 'mode("append")')
        return MessageWriter(WriteOptions.of(self.options, is_stream=False), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        """The writer of a stream's micro-batches."""
        from duewheel.spark.message_writer import MessageStreamWriter
        from duewheel.spark.write_options import WriteOptions

        _refuse_overwriting(overwrite, 'outputMode("append")')
        return MessageStreamWriter(WriteOptions.of(self.options, is_stream=True), schema)


def _refuse_overwriting(overwrite: bool, instead: str) -> None:
    if overwrite:
        raise InvalidArgument(f"messages are added to a topic and never overwritten: write with {instead}")


@told_first
class LeaseDataReader(DataSourceReader):
    """Deals leases out to partitions on the driver and reads them on the executors."""

    def __init__(
        self,
        *,
        dsn: str,
        leases: Sequence[Lease] | None,
        partitions: int,
        batch_bytes: int,
        min_partitions: int = 1,
        with_answered: bool = False,
        columns: tuple[str, ...] = ALL_COLUMNS,
        schema: StructType | None = None,
    ) -> None:
        self._dsn = dsn
        self._schema = schema
        self._columns = columns
        self._leases = leases
        self._partitions = partitions
        self._min_partitions = min_partitions
        self._batch_bytes = batch_bytes
        self._with_answered = with_answered

    def __getstate__(self) -> dict[str, Any]:
        # Executors get their leases with the partition, not with the reader.
        return {**self.__dict__, "_leases": None}

    def partitions(self) -> list[InputPartition]:
        """Ask the broker for the query of each lease, and deal the leases out.

        Raises:
            InvalidArgument: this reader is a copy that an executor got, which has no leases.
        """
        from duewheel.spark.lease_plan import deal_out

        if self._leases is None:
            raise InvalidArgument(
                "a pickled copy of a reader has no leases and only reads partitions: plan with the reader "
                "that it was copied from, or have the data source make one"
            )
        return list(deal_out(self._plan(self._leases), self._partitions, self._min_partitions))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the leases of one partition as Arrow batches."""
        if not isinstance(partition, LeasePartition):
            # Spark passes this stand-in for a DataFrame without partitions.
            return iter(())
        from duewheel.spark.lease_reader import read_leases
        from duewheel.spark.message_batches import as_asked

        leased = read_leases(self._dsn, partition.leases, self._batch_bytes, self._columns)
        return as_asked(leased, self._schema)

    def _plan(self, leases: Sequence[Lease]) -> list[LeaseToRead]:
        from duewheel.spark.lease_plan import plan_leases
        from duewheel.spark.planning import planning

        with planning(self._dsn) as connection:
            return plan_leases(connection, leases, with_answered=self._with_answered)
