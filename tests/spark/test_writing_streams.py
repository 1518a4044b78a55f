"""``writeStream.format("duewheel")``: each micro-batch is sent once."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import psycopg2
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from tests.conftest import execute

from duewheel.spark.message_writer import MessageStreamWriter
from duewheel.spark.write_options import WriteOptions
from duewheel.store.broker import Broker

TOPIC = "orders"


class Copying:
    """A query that sends the lines of files."""

    def __init__(self, spark: SparkSession, broker: Broker, folder: Path) -> None:
        self._spark = spark
        self._dsn = broker.dsn
        self.checkpoint = folder / "checkpoint"
        self.files = folder / "files"
        self.files.mkdir()

    def add(self, keys: range) -> None:
        (self.files / f"{keys.start}.txt").write_text("".join(f"{key}\n" for key in keys))

    def run(self, **options: str) -> None:
        """Sends what is there, a file in a micro-batch, and ends."""
        query = (
            self._spark.readStream.option("maxFilesPerTrigger", 1)
            .text(str(self.files))
            .selectExpr("value as body", "value as key", "60 as delay")
            .writeStream.format("duewheel")
            .options(dsn=self._dsn, topic=TOPIC, checkpointLocation=str(self.checkpoint), **options)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def forget_commit(self) -> None:
        """As if the driver was killed when its last micro-batch was sent and before Spark wrote so down."""
        commits = self.checkpoint / "commits"
        last = max(int(path.name) for path in commits.iterdir() if path.name.isdecimal())
        (commits / str(last)).unlink()
        (commits / f".{last}.crc").unlink()


def keys(broker: Broker) -> list[int]:
    return sorted(int(key) for (key,) in execute(broker.dsn, "select key from duewheel.any_message"))


def test_each_micro_batch_is_sent_once_also_when_it_is_run_again(
    broker: Broker, spark: SparkSession, tmp_path: Path
) -> None:
    broker.create_topic(TOPIC)
    copying = Copying(spark, broker, tmp_path)
    copying.add(range(100))
    copying.add(range(100, 150))
    copying.run()
    assert keys(broker) == list(range(150))
    copying.forget_commit()
    copying.add(range(150, 180))
    copying.run()
    assert keys(broker) == list(range(180))
    assert execute(broker.dsn, "select batch from duewheel.published_batch") == [(2,)]
    assert execute(broker.dsn, "select count(*) from duewheel.staged_message") == [(0,)]


@pytest.mark.long
def test_micro_batch_that_failed_is_sent_by_the_next_run(
    broker: Broker, spark: SparkSession, tmp_path: Path
) -> None:
    broker.create_topic(TOPIC)
    copying = Copying(spark, broker, tmp_path)
    copying.add(range(50))
    with closing(psycopg2.connect(broker.dsn)) as connection, connection.cursor() as cursor:
        cursor.execute("update duewheel.topic set max_delay = '1 second'")
        connection.commit()
        with pytest.raises(PySparkException, match=r"DelayOutOfRange.*the limit of topic \"orders\""):
            copying.run()
        assert keys(broker) == []
        cursor.execute("update duewheel.topic set max_delay = '1 hour'")
        connection.commit()
    copying.run()
    assert keys(broker) == list(range(50))


def test_stream_is_checked_before_it_sends(broker: Broker, spark: SparkSession, tmp_path: Path) -> None:
    broker.create_topic(TOPIC)
    copying = Copying(spark, broker, tmp_path)
    copying.add(range(5))
    with pytest.raises(PySparkException, match="each of its micro-batches is sent once by the checkpoint"):
        copying.run(idempotencyKey="k")
    assert keys(broker) == []
    writer = MessageStreamWriter(
        WriteOptions.of({"dsn": broker.dsn, "topic": TOPIC}, is_stream=True),
        spark.sql("select '' as body, 5 as delay").schema,
    )
    with pytest.raises(Exception, match="write with writeStream"):
        writer.write(iter(()))
