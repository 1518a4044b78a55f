"""The data source for Spark Connect: everything except the lease that an action takes by itself.

A client of Connect holds only a plan. The server makes a new data source from it for each action. The name
under which the actions of one DataFrame find their lease would differ each time, and each action would lease
other messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from duewheel.spark.data_source import DueWheelDataSource
from duewheel.store.values.errors import InvalidArgument

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader
    from pyspark.sql.types import StructType


class ConnectDataSource(DueWheelDataSource):
    """The data source ``duewheel`` of a session of Spark Connect."""

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of a lease that is held, or of the messages that are stored.

        Raises:
            InvalidArgument: a group is given and no lease. Nothing was leased.
        """
        from duewheel.spark.read_options import ReadOptions

        options = ReadOptions.of(self.options)
        if options.leases is None and not options.peek:
            raise InvalidArgument(
                "on Spark Connect each action would take a lease of its own: take the batch first, with "
                'LeasedBatch.take(...).dataframe(spark), or read without a lease, with mode="peek"'
            )
        return super().reader(schema)
