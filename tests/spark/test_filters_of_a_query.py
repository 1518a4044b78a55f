"""Filters of a query are Spark's to answer, also where it offers them to data sources."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from duewheel.spark.leased_batch import LeasedBatch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from duewheel.store.broker import Broker

pytestmark = pytest.mark.timeout(1200)

SWITCH = "spark.sql.python.filterPushdown.enabled"


def test_frame_that_was_filtered_is_read_as_a_whole_again(broker: Broker, spark: SparkSession) -> None:
    """PySpark 4.3 keeps a read with filters for the queries without them: taking any would lose rows."""
    broker.create_topic("orders")
    broker.send_many("orders", [{"body": b"", "tag": "ab"[n % 2], "delay": timedelta(0)} for n in range(10)])
    batch = LeasedBatch.take(broker, "orders", "g")
    spark.conf.set(SWITCH, "true")
    try:
        for frame in (
            batch.dataframe(spark, ["tag"]),
            spark.read.format("duewheel").options(dsn=broker.dsn, topic="orders", mode="peek").load(),
        ):
            assert [frame.where("tag = 'a'").count(), frame.count()] == [5, 10]
    finally:
        spark.conf.unset(SWITCH)
