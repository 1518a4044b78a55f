"""Sessions: one that somebody else has started is used and left running."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from duewheel.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]


def test_session_of_another_thread_is_left_running(spark: SparkSession) -> None:
    """Spark calls a session active only in the thread that made it."""

    def count() -> int:
        with spark_session("second", conf={"spark.sql.shuffle.partitions": "7"}) as second:
            return second.range(3).count()

    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(count).result() == 3
    assert spark.range(5).count() == 5
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
