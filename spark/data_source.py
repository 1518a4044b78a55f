"""``spark.read.format("duewheel")``: a batch of leased messages as a DataFrame.

A lease is taken once and belongs to its DataFrame: counting it twice, joining it with itself, or reading it
again after an executor died always gives the same rows. Nothing is acked by reading.

A read gets its lease in one of two ways:

- The program that runs the job takes it and passes it as the option ``lease``;
  :class:`duewheel.spark.leased_batch.LeasedBatch` and the operator do this. They can ack it. This way works
  with Spark Connect too, where ``load()`` runs on a server and may run again for each action.
- With ``topic`` and ``group`` the first action takes it. It is never acked: this way is for looking at the
  messages that a consumer would get, and they come again when the lease ends. ``load()`` only checks the
  options, because Spark calls the same method for a stream, which leases nothing. The data source draws a
  random name when it is made; later actions find the lease by that name.

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

import secrets
from collections.abc import Iterator, MutableMapping, Sequence
from datetime import UTC, datetime, timedelta
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
from duewheel.store.values.errors import InvalidArgument

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from duewheel.spark.lease_partition import LeaseToRead
    from duewheel.spark.read_options import ReadOptions
    from duewheel.store.values.leases import Lease

FORMAT = "duewheel"
CLOCKS_APART = timedelta(minutes=5)
"""How far the driver's clock may be ahead of the database's."""


class DueWheelDataSource(DataSource):
    """The Spark data source ``duewheel``.

    Options, all text:
        dsn: address of the broker's database, as libpq string or URL; reachable from the executors too.
        lease: leases that are held, as :func:`duewheel.store.leases.to_json` writes them.
        topic, group, tags, filter: the messages to lease when no lease is given; ``tags`` as ``"a || b"``,
            ``filter`` as ``"region = 'north'"``, all when left out.
        max_messages: how many to lease at most, 10 000 when left out. For a stream: how many to read in a
            micro-batch at most, all when left out.
        invisible_seconds: how long that lease lasts, 1 s to 12 h; 600 when left out.
        partitions: the largest number of partitions to deal the leases out to; 4 when left out.
        batch_bytes: about how large one Arrow batch may become; 4 MiB when left out.
        with_answered: whether to read also the messages of a lease that were answered one by one; false when
            left out.
        startingOffsets: where a new stream begins: earliest, latest or an instant; the position of its group
            when left out.
        failOnDataLoss: whether a stream fails when retention has dropped messages that it had not read; true
            when left out.
        reconnect_seconds: how long the driver of a stream waits for a broker that cannot be reached, up to a
            week; 600 when left out.
        mode: lease when left out; peek reads the messages stored in the topic, for no group, and leases
            nothing.
        due_from, due_until: with peek, only messages due at or after the first instant and before the second.
        columns: names of the columns wanted, with commas between; all when left out. Other columns do not
            leave the database. ``.schema(...)`` with some of the columns does the same.

    Errors:
        InvalidArgument: an option is unknown, missing or cannot be understood; nothing was leased.
            LeaseLost: a lease has ended. UnknownTopic and the other errors of the broker: as they are.

    Example::

        register(spark)
        messages = spark.read.format("duewheel").option("dsn", dsn).option("lease", to_json(leases)).load()
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._consumer_name = f"spark/{secrets.token_hex(16)}"
        self._made_at = datetime.now(UTC)

    @classmethod
    def name(cls) -> str:
        """The name to give to ``format``."""
        return FORMAT

    def schema(self) -> StructType:
        """The columns; checks the options and that the topic exists."""
        from duewheel.spark.read_options import ReadOptions

        options = ReadOptions.of(self.options)
        if options.peek:
            from duewheel.spark.peek_reader import PeekReader

            PeekReader(options, ()).check_topic()
        elif options.leases is None:
            from duewheel.spark.stream_reader import starting
            from duewheel.store.broker import Broker

            starting(options.starting_offsets)

            with Broker(options.dsn) as broker:
                broker.consumer(options.topic, options.group)
        return spark_schema(options.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of the leased messages; takes the lease when there is none yet."""
        from duewheel.spark.read_options import ReadOptions, check_for_a_read

        options = ReadOptions.of(self.options)
        check_for_a_read(self.options)
        columns = columns_of(schema)
        if options.peek:
            from duewheel.spark.peek_reader import PeekReader

            return PeekReader(options, columns)
        return LeaseDataReader(
            dsn=options.dsn,
            leases=options.leases,
            planned=self._take_lease(options) if options.leases is None else None,
            partitions=options.partitions,
            batch_bytes=options.batch_bytes,
            columns=columns,
            with_answered=options.with_answered,
        )

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """The reader of a stream, which leases nothing."""
        from duewheel.spark.read_options import ReadOptions, check_for_a_stream
        from duewheel.spark.stream_reader import MessageStreamReader, starting

        options = ReadOptions.of(self.options)
        if options.leases is not None or options.peek:
            raise InvalidArgument(
                "a stream reads released messages and takes no lease: give a topic and a group"
            )
        check_for_a_stream(self.options)
        starting(options.starting_offsets)
        return MessageStreamReader(options, columns_of(schema))

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

    def _take_lease(self, options: ReadOptions) -> list[LeaseToRead]:
        """Take the lease and ask for its query in one session: a new session costs more than the question."""
        from duewheel.spark.lease_plan import plan_leases
        from duewheel.spark.leasing import lease_messages
        from duewheel.store.broker import Broker

        with Broker(options.dsn) as broker:
            consumer = broker.consumer(
                options.topic,
                options.group,
                tags=options.tags,
                filter=options.filter,
                name=self._consumer_name,
            )
            leases = lease_messages(
                broker,
                consumer,
                max_messages=options.max_messages,
                invisible=options.invisible,
                partitions=options.partitions,
                once_since=self._made_at - CLOCKS_APART,
            )
            with broker.connection() as connection:
                return plan_leases(connection, leases, with_answered=options.with_answered)


def _refuse_overwriting(overwrite: bool, instead: str) -> None:
    if overwrite:
        raise InvalidArgument(f"messages are added to a topic and never overwritten: write with {instead}")


class LeaseDataReader(DataSourceReader):
    """Deals leases out to partitions on the driver and reads them on the executors."""

    def __init__(
        self,
        *,
        dsn: str,
        leases: Sequence[Lease] | None,
        partitions: int,
        batch_bytes: int,
        with_answered: bool = False,
        columns: tuple[str, ...] = ALL_COLUMNS,
        planned: Sequence[LeaseToRead] | None = None,
    ) -> None:
        self._dsn = dsn
        self._columns = columns
        self._leases = leases
        self._partitions = partitions
        self._batch_bytes = batch_bytes
        self._with_answered = with_answered
        self._planned = planned

    def __getstate__(self) -> dict[str, Any]:
        # Executors get their leases with the partition, not with the reader.
        return {**self.__dict__, "_leases": None, "_planned": None}

    def partitions(self) -> list[InputPartition]:
        """Ask the broker for the query of each lease, unless it is known already, and deal the leases out.

        Raises:
            InvalidArgument: this reader is a copy that an executor got, which has no leases.
        """
        from duewheel.spark.lease_plan import deal_out

        planned = self._planned
        if planned is None:
            if self._leases is None:
                raise InvalidArgument(
                    "a pickled copy of a reader has no leases and only reads partitions: plan with the "
                    "reader that it was copied from, or have the data source make one"
                )
            planned = self._plan(self._leases)
        return list(deal_out(planned, self._partitions))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the leases of one partition as Arrow batches."""
        if not isinstance(partition, LeasePartition):
            # Spark passes this stand-in for a DataFrame without partitions.
            return iter(())
        from duewheel.spark.lease_reader import read_leases

        return read_leases(self._dsn, partition.leases, self._batch_bytes, self._columns)

    def _plan(self, leases: Sequence[Lease]) -> list[LeaseToRead]:
        from duewheel.spark.lease_plan import plan_leases
        from duewheel.spark.planning import planning

        with planning(self._dsn) as connection:
            return plan_leases(connection, leases, with_answered=self._with_answered)
