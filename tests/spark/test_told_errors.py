"""What Spark shows of an error of this package: its class and message first, without the frames of a
worker."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import Row, SparkSession
from tests.conftest import execute
from tests.console import is_said

from duewheel.spark.batch import Batch
from duewheel.store.broker import Broker
from duewheel.store.leases import to_json

TOPIC = "orders"
REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "spark.md"


@pytest.fixture
def orders(broker: Broker) -> Broker:
    """A broker with ten messages."""
    broker.create_topic(TOPIC)
    broker.send_many(TOPIC, [{"body": b"", "delay": timedelta(0)}] * 10)
    return broker


def shown(action: Callable[[], object]) -> str:
    """What a user sees, without the words of Spark that stand before it."""
    with pytest.raises(PySparkException) as raised:
        action()
    said = str(raised.value).split("\n SQLSTATE")[0]
    assert "Traceback" not in said
    *before, told = said.splitlines()
    assert before in ([], ["An exception was thrown from the Python worker:"])
    return told.rpartition("duewheel.store.values.errors.")[2]


def test_an_error_of_a_read_is_its_class_and_message(orders: Broker, spark: SparkSession) -> None:
    """Of an option, of the plan, and of a task."""
    batch = Batch.take(orders, TOPIC, "g", invisible=timedelta(hours=1))
    nowhere = spark.read.format("duewheel").options(dsn=orders.dsn, topic="nowhere")
    assert shown(nowhere.load).startswith('UnknownTopic: there is no topic "nowhere". Correct the name, ')
    unknown = to_json([replace(lease, n=lease.n + 1_000) for lease in batch.leases])
    planned = spark.read.format("duewheel").options(dsn=orders.dsn, lease=unknown)
    assert re.search(
        r"^LeaseLost: \d leases? lost, .* lease 10\d\d on queue \d .* is unknown to the broker\. Take",
        shown(planned.load().collect),
    )
    execute(orders.dsn, "delete from duewheel.message; delete from duewheel.far_message")
    assert shown(batch.on(spark).messages.collect).startswith("LeaseLost: of the ")


@pytest.mark.long
def test_spark_wraps_an_error_as_the_reference_says(
    orders: Broker, spark: SparkSession, tmp_path: Path
) -> None:
    """The error of a read, as the page shows it, and the error of a stream."""
    with pytest.raises(AnalysisException) as read:
        spark.read.format("duewheel").options(dsn=orders.dsn, topic="nowhere").load()

    def stream() -> None:
        messages = spark.readStream.format("duewheel").options(dsn=orders.dsn, topic=TOPIC, group="lake")
        writing = messages.load().writeStream.format("noop").trigger(availableNow=True)
        writing.option("checkpointLocation", str(tmp_path)).start().awaitTermination()

    stream()
    orders.delete_topic(TOPIC)
    orders.create_topic(TOPIC)
    with pytest.raises(StreamingQueryException) as streamed:
        stream()
    (block,) = re.findall(r"^```\n(\[PYTHON_.*?)```$", REFERENCE.read_text(), re.M | re.S)
    assert is_said(block, str(read.value)), read.value
    assert "Traceback" not in str(streamed.value)
    assert "duewheel.store.values.errors.InvalidArgument: the checkpoint is of another topic" in str(
        streamed.value
    )


@pytest.mark.long
def test_an_error_of_a_write_is_its_class_and_message(orders: Broker, spark: SparkSession) -> None:
    rows = spark.sql("select 'no tag' tag, '' body, 1 delay").write.format("duewheel").mode("append")
    assert shown(rows.options(dsn=orders.dsn, topic=TOPIC).save).startswith(
        'InvalidTag: row 0 of partition 0: "no tag" is not a tag: '
    )


def test_a_function_of_the_user_keeps_its_traceback(orders: Broker, spark: SparkSession) -> None:
    def refuse(rows: Iterator[Row]) -> None:
        for _ in rows:
            raise ValueError("not today")

    frame = Batch.take(orders, TOPIC, "g", invisible=timedelta(hours=1)).on(spark, ["key"]).messages
    with pytest.raises(PySparkException, match=r"Traceback[\s\S]*in refuse[\s\S]*ValueError: not today"):
        frame.foreachPartition(refuse)
