"""The data source as Spark Connect can have it: all of it but the lease that an action takes by itself.

A client of Connect holds only a plan. The server makes a data source of it anew for each action, so the name
under which the actions of one DataFrame find their lease again would be another each time, and each of them
would lease other messages.
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
        """The reader of a lease that is held, or of what is stored.

        Raises:
            InvalidArgument: there is a group and no lease; nothing was leased.
        """
        from duewheel.spark.read_options import ReadOptions

        options = ReadOptions.of(self.options)
        if options.leases is None and not options.peek:
            raise InvalidArgument(
                "on Spark Connect each action would lease anew: take the batch first, with "
                'LeasedBatch.take(...).dataframe(spark), or look without a lease, with mode="peek"'
            )
        return super().reader(schema)
