"""What docs/how-to/spark-cluster.md says of several brokers and of connections."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from duewheel.spark import Batch, consume
from duewheel.store import Broker
from duewheel.store.database.connections import DriverConnection

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "spark-cluster.md").read_text()
TOPIC = "order-timeout"
CORES = 2


@pytest.fixture
def brokers(fresh_database: Callable[[], tuple[str, str]]) -> Iterator[list[Broker]]:
    """Two brokers, with three and with four messages that are due, each with its own tag."""
    with ExitStack() as stack:
        both = [stack.enter_context(Broker(fresh_database()[1])) for _ in range(2)]
        for broker, tag, count in zip(both, ("north", "south"), (3, 4), strict=True):
            broker.create_topic(TOPIC)
            broker.send_many(
                TOPIC,
                [{"body": b"", "key": str(n), "tag": tag, "delay": timedelta(0)} for n in range(count)],
            )
        yield both


@pytest.mark.long
def test_batches_of_several_brokers_are_one_dataframe(
    spark: SparkSession, brokers: list[Broker], tmp_path: Path
) -> None:
    (example,) = re.findall(r"^```\n(with \(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    path = str(tmp_path / "lake")
    north, south = (broker.dsn for broker in brokers)
    exec(example, {"consume": consume, "spark": spark, "north": north, "south": south, "path": path})
    assert Counter(row.tag for row in spark.read.parquet(path).collect()) == {"north": 3, "south": 4}
    assert all(not broker.consumer(TOPIC, "lake").receive() for broker in brokers)


def test_partition_work_has_two_connections_for_each_core(spark: SparkSession, brokers: list[Broker]) -> None:
    assert f"    2 * cores + {2}\n" in PAGE
    broker, _ = brokers
    broker.send_many(TOPIC, [{"body": b"", "delay": timedelta(0)} for _ in range(1000)])
    with broker.connection() as connection, connection.cursor() as cursor:
        cursor.execute("create table seen (connections bigint)")

    def work(connection: DriverConnection, batches: Iterator[Any]) -> None:
        # While it reads.
        next(batches)
        with connection.cursor() as cursor:
            cursor.execute(
                "insert into seen select count(*) from pg_stat_activity"
                " where datname = current_database() and backend_type = 'client backend'"
            )

    batch = Batch.take(broker, TOPIC, "counter", partitions=8)
    with batch.kept_alive():
        assert batch.on(spark).foreach_partition(work) == batch.count > 900
    with broker.connection() as connection, connection.cursor() as cursor:
        cursor.execute("select count(*), max(connections) from seen")
        parts, most = cursor.fetchone()
    assert parts == 8
    assert 2 < most <= 2 * CORES + 2
