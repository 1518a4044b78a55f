"""``spark.read.format("duewheel")``: a batch of leased messages as a DataFrame.

A lease is taken once, when ``load()`` is called, and belongs to that DataFrame: counting it twice, joining it
with itself, or reading it again after an executor died always gives the same rows. Nothing is acked by
reading (X09).

There are two ways to a lease:

- Whoever runs the job takes it and passes it as the option ``lease``;
  :class:`duewheel.spark.leased_batch.LeasedBatch` and the operator do this. They hold what an ack needs, and
  it works with Spark Connect too, where ``load()`` runs on a server and may run again for each action.
- With ``topic`` and ``group`` the data source takes it itself. Nobody acks it: this is for looking at what
  would come, and the messages come again when the lease ends.

The driver asks the broker for the query of each lease and deals the leases out to partitions; the executors
run these queries (:mod:`duewheel.spark.lease_reader`). The dsn travels inside pickled objects only, never in
a plan, in an ``InputPartition`` or in Spark's configuration, so that neither the UI nor a log shows a
password.

The package has to be installed where the executors run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from duewheel.spark.lease_reader import DEFAULT_BATCH_BYTES, LeasePartition, LeaseToRead, read_leases
from duewheel.spark.leasing import lease_messages
from duewheel.spark.message_columns import SPARK_SCHEMA
from duewheel.store.broker import Broker
from duewheel.store.connections import fetch, libpq_dsn
from duewheel.store.errors import InvalidArgument
from duewheel.store.leases import Lease, from_json, to_json
from duewheel.store.tags import EVERY

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = "duewheel"
OPTIONS = frozenset(
    {
        "dsn",
        "lease",
        "topic",
        "group",
        "tags",
        "filter",
        "max_messages",
        "invisible_seconds",
        "partitions",
        "batch_bytes",
    }
)
DEFAULT_MAX_MESSAGES = 10_000
DEFAULT_INVISIBLE_SECONDS = 600
DEFAULT_PARTITIONS = 4
MESSAGES_WORTH_A_PARTITION = 1_000
"""A partition costs a task, a Python worker and a connection; fewer messages than this are not worth one
more."""

_PLAN_LEASES = (Path(__file__).parent / "plan_leases.sql").read_text()


class DueWheelDataSource(DataSource):
    """The Spark data source ``duewheel``.

    Options, all text:
        dsn: address of the broker's database, as libpq string or URL; reachable from the executors too.
        lease: leases that are held, as :func:`duewheel.store.leases.to_json` writes them.
        topic, group, tags, filter: what to lease when no lease is given; ``tags`` as ``"a || b"``, ``filter``
            as ``"region = 'north'"``, all when left out.
        max_messages: how many to lease at most; 10 000 when left out.
        invisible_seconds: how long that lease lasts, 1 s to 12 h; 600 when left out.
        partitions: into how many partitions to deal the leases out at most; 4 when left out.
        batch_bytes: about how large one Arrow batch may become; 4 MiB when left out.

    Errors:
        InvalidArgument: an option is unknown, missing or cannot be understood. UnknownTopic and the
            other errors of the broker: as they are.

    Example::

        register(spark)
        messages = spark.read.format("duewheel").option("dsn", dsn).option("lease", to_json(leases)).load()

    Rules: X09, R01, R13.
    """

    @classmethod
    def name(cls) -> str:
        """The name to give to ``format``."""
        return FORMAT

    def schema(self) -> StructType:
        """The columns; takes the lease when none was given, because ``load()`` calls this exactly once."""
        self._check_options()
        if "lease" not in self.options:
            self.options["lease"] = to_json(self._take_lease())
        return SPARK_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of the leased messages."""
        if schema != SPARK_SCHEMA or "lease" not in self.options:
            raise InvalidArgument("the data source duewheel has columns of its own: leave .schema(...) out")
        return LeaseDataReader(
            dsn=self._dsn(),
            leases=from_json(self.options["lease"]),
            partitions=self._number("partitions", DEFAULT_PARTITIONS),
            batch_bytes=self._number("batch_bytes", DEFAULT_BATCH_BYTES),
        )

    def _take_lease(self) -> list[Lease]:
        dsn = self._dsn()
        for option in ("topic", "group"):
            if not self.options.get(option):
                raise InvalidArgument(
                    f"the option {option!r} is missing: give a topic and a group, or a lease"
                )
        with Broker(dsn) as broker:
            consumer = broker.consumer(
                self.options["topic"],
                self.options["group"],
                tags=self.options.get("tags") or EVERY,
                filter=self.options.get("filter") or None,
            )
            return lease_messages(
                broker,
                consumer,
                max_messages=self._number("max_messages", DEFAULT_MAX_MESSAGES),
                invisible=timedelta(seconds=self._number("invisible_seconds", DEFAULT_INVISIBLE_SECONDS)),
            )

    def _check_options(self) -> None:
        # Spark adds options of its own for some catalogs; those have a dot.
        unknown = sorted(
            option for option in self.options if option.lower() not in OPTIONS and "." not in option
        )
        if unknown:
            raise InvalidArgument(f"unknown options {unknown}: there are {sorted(OPTIONS)}")

    def _dsn(self) -> str:
        dsn = self.options.get("dsn")
        if not dsn:
            raise InvalidArgument("the option 'dsn' is missing: give the address of the broker's database")
        return libpq_dsn(dsn)

    def _number(self, option: str, default: int) -> int:
        text = self.options.get(option)
        if text is None:
            return default
        if not text.strip().isdecimal() or int(text) < 1:
            raise InvalidArgument(f"the option {option!r} is {text!r}: give a whole number of 1 or more")
        return int(text)


class LeaseDataReader(DataSourceReader):
    """Deals leases out to partitions on the driver and reads them on the executors."""

    def __init__(self, *, dsn: str, leases: Sequence[Lease], partitions: int, batch_bytes: int) -> None:
        self._dsn = dsn
        self._leases = leases
        self._partitions = partitions
        self._batch_bytes = batch_bytes

    def partitions(self) -> list[InputPartition]:
        """Ask the broker for the query of each lease and deal the leases out."""
        return list(deal_out(self._plan(), self._partitions))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the leases of one partition as Arrow batches."""
        if not isinstance(partition, LeasePartition):
            # Spark's stand-in for a DataFrame without partitions.
            return iter(())
        return read_leases(self._dsn, partition.leases, self._batch_bytes)

    def _plan(self) -> list[LeaseToRead]:
        leases = [lease for lease in self._leases if lease.count]
        if not leases:
            return []
        if any(lease.seqs is not None for lease in leases):
            raise InvalidArgument(
                "a DataFrame is read from whole leases: give batch.leases, not those of some messages"
            )
        parameters = (
            [lease.group_id for lease in leases],
            [lease.topic_id for lease in leases],
            [lease.queue for lease in leases],
            [lease.n for lease in leases],
        )
        with Broker(self._dsn) as broker, broker.connection() as connection:
            planned = fetch(connection, _PLAN_LEASES, parameters)
        return [
            LeaseToRead(
                lease.topic_id,
                lease.queue,
                lease.n,
                lease.count,
                f"{lease.group_id}.{lease.topic_id}.{lease.queue}.{lease.n}.{lease.token}",
                topic,
                query,
            )
            for lease, (topic, query) in zip(leases, planned, strict=True)
        ]


def deal_out(leases: Sequence[LeaseToRead], partitions: int) -> list[LeasePartition]:
    """Deal leases out to partitions of about equal size.

    Each lease goes to the partition that has least so far, the largest leases first: no partition is then
    larger than 4/3 of the best that can be reached. The order within a partition is the order of ``leases``.

    Args:
        leases: what to read; a lease is never split.
        partitions: how many partitions at most; fewer where there are fewer leases or few messages.

    Example:
        >>> [partition.count for partition in deal_out([lease_of_3000, lease_of_1000, lease_of_2000], 2)]  #
        doctest: +SKIP [3000, 3000]
    """
    total = sum(lease.count for lease in leases)
    number = min(partitions, len(leases), max(1, math.ceil(total / MESSAGES_WORTH_A_PARTITION)))
    counts = [0] * number
    dealt: list[list[int]] = [[] for _ in range(number)]
    for place in sorted(range(len(leases)), key=lambda place: -leases[place].count):
        least = counts.index(min(counts))
        counts[least] += leases[place].count
        dealt[least].append(place)
    return [LeasePartition(tuple(leases[place] for place in sorted(places))) for places in dealt]
