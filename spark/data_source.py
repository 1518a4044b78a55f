"""``spark.read.format("duewheel")``: the messages of a topic, or those of a leased batch, as a DataFrame.

A read without a lease is a look: it reads what the topic has at that moment, for no group. The batch of
:func:`duewheel.spark.consume` sets the option ``lease``. A lease belongs to its DataFrame: counting it twice,
joining it with itself, or reading it again after an executor died always gives the same rows. Nothing is
acked by reading.

The driver asks the broker how much is to be read of each lease and deals the leases out to partitions; the
executors read them (:mod:`duewheel.spark.message_reader`). The dsn travels inside pickled objects only, never
in a plan, in an ``InputPartition`` or in Spark's configuration, so that neither the UI nor a log shows a
password.

The package has to be installed where the executors run. Spark loads a data source, and plans each read, in
Python processes of their own, which end once they are idle for a minute. An action that needs no more rows,
such as ``first()``, ends the Python worker of its task, and the next action begins a new worker, which loads
this module before it reads. So modules that only executors, only planning, or only writers need are imported
where they are used.
"""

from __future__ import annotations

from collections.abc import Iterator
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
from duewheel.spark.message_columns import columns_of, spark_schema
from duewheel.spark.told_errors import told_first
from duewheel.store.values.errors import InvalidArgument

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from duewheel.spark.read_options import LeaseRead

FORMAT = "duewheel"


@told_first
class DueWheelDataSource(DataSource):
    """The Spark data source ``duewheel``.

    The options, all text, are fields of :class:`duewheel.spark.read_options.LookRead` and
    :class:`~duewheel.spark.read_options.StreamRead`. ``docs/reference/spark.md`` lists them with their
    defaults.

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
        return LeaseDataReader(LeaseRead.of(self.options), columns, schema)

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

    def __init__(self, read: LeaseRead, columns: tuple[str, ...], schema: StructType) -> None:
        self._read: LeaseRead | None = read
        self._dsn = read.dsn
        self._batch_bytes = read.batch_bytes
        self._columns = columns
        self._schema = schema

    def __getstate__(self) -> dict[str, Any]:
        # Executors get their leases with the partition, and load no module of the driver.
        return {**self.__dict__, "_read": None}

    def partitions(self) -> list[InputPartition]:
        """Ask the broker which messages of each lease to read, and deal the leases out.

        Raises:
            InvalidArgument: this reader is a copy that an executor got, which has no leases.
        """
        from duewheel.spark.lease_plan import deal_out, plan_leases, planning

        read = self._read
        if read is None:
            raise InvalidArgument(
                "a pickled copy of a reader has no leases and only reads partitions: plan with the reader "
                "that it was copied from, or have the data source make one"
            )
        with planning(read.dsn) as connection:
            planned = plan_leases(connection, read.leases, with_answered=read.with_answered)
        return list(deal_out(planned, read.partitions, read.min_partitions))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the leases of one partition as Arrow batches."""
        if not isinstance(partition, LeasePartition):
            # Spark passes this stand-in for a DataFrame without partitions.
            return iter(())
        from duewheel.spark.message_batches import as_asked
        from duewheel.spark.message_reader import read_leases

        leased = read_leases(self._dsn, partition.leases, self._batch_bytes, self._columns)
        return as_asked(leased, self._schema)
