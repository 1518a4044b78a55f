"""The sinks of docs/how-to/spark-cluster.md: each is written twice, and has each message once."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from tests.waiting import ask, connected

from duewheel.spark import Batch, consume
from duewheel.store.broker import Broker

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "spark-cluster.md").read_text()
TOPIC = "order-timeout"
COUNT = 30


def split(name: str) -> tuple[str, str]:
    """The definition of a function on the page, and the lines after it, which use it."""
    _, _, rest = PAGE.partition("\n## Write files or another database once\n")
    section, _, _ = rest.partition("\n## ")
    (program,) = re.findall(rf"^```\n([^`]*^def {name}\([^`]*)^```$", section, re.MULTILINE)
    define, _, use = program.rpartition("\n\n")
    return define, use


def counts(frame: DataFrame) -> tuple[int, int]:
    keys = [row.key for row in frame.select("key").collect()]
    return len(keys), len(set(keys))


@pytest.fixture
def names(broker: Broker, spark: SparkSession, tmp_path: Path) -> dict[str, Any]:
    """What the page's programs take as given, and a topic with messages that are due."""
    broker.create_topic(TOPIC)
    broker.send_many(TOPIC, [{"body": b"", "key": str(n), "delay": timedelta(0)} for n in range(COUNT)])
    with connected(broker.dsn) as connection:
        ask(connection, "create table due_order (message_id text primary key, number text)")
    given = {"spark": spark, "dsn": broker.dsn, "other_dsn": broker.dsn, "path": str(tmp_path)}
    return {**given, "consume": consume, "timedelta": timedelta}


@pytest.mark.long
def test_a_stream_into_parquet_writes_each_message_once(
    spark: SparkSession, tmp_path: Path, names: dict[str, Any]
) -> None:
    define, stream = split("write")
    exec(define, names)
    write = names["write"]

    def write_and_die(*given: Any) -> None:
        write(*given)
        raise RuntimeError("the job dies here")

    with pytest.raises(StreamingQueryException, match="the job dies here"):
        exec(stream, {**names, "write": write_and_die})
    exec(stream, names)
    assert counts(spark.read.parquet(f"{tmp_path}/orders")) == (COUNT, COUNT)


@pytest.mark.long
def test_a_leased_batch_into_a_partition_has_each_message_once(
    broker: Broker, spark: SparkSession, tmp_path: Path, names: dict[str, Any]
) -> None:
    define, lease = split("write_batch")
    exec(define, names)
    batch = Batch.take(broker, TOPIC, "table").on(spark, ["message_id", "key", "deliver_at"])
    # The task's next try has the same leases.
    for _ in range(2):
        names["write_batch"](batch)
    assert counts(spark.read.parquet(f"{tmp_path}/due")) == (COUNT, COUNT)
    # No try follows, so the messages are delivered in another batch.
    batch.nack(timedelta(0))
    exec(lease, names)
    assert counts(spark.read.parquet(f"{tmp_path}/due")) == (2 * COUNT, COUNT)
    (read_once,) = re.findall(r"`(spark\.read\S+dropDuplicates\S+)`", PAGE)
    assert counts(eval(read_once, names)) == (COUNT, COUNT)


@pytest.mark.long
def test_a_table_has_each_message_once(broker: Broker, names: dict[str, Any], tmp_path: Path) -> None:
    """Of a batch that is delivered again, and of a stream whose part dies after its work."""
    define, batch = split("insert")
    exec(define, names)
    exec(f"{batch}    batch.nack(timedelta(0))", names)
    exec(batch, names)
    assert not Batch.take(broker, TOPIC, "elsewhere")
    with connected(broker.dsn) as connection:
        look = "select number from due_order order by number::integer"
        every = [(str(n),) for n in range(COUNT)]
        assert ask(connection, look) == every
        insert, has_died = names["insert"], tmp_path / "has died"

        def insert_and_die(rows: Any) -> None:
            insert(list(rows))
            if not has_died.exists():
                has_died.touch()
                raise RuntimeError("the job dies here")

        ask(connection, "delete from due_order")
        (sink,) = re.findall(r"`foreachBatch\((lambda .*)\)`", PAGE)
        _, stream = split("write")
        # Spark tries the part again.
        names["insert"] = insert_and_die
        exec(stream.replace("foreachBatch(write)", f"foreachBatch({sink})"), names)
        assert has_died.exists()
        assert ask(connection, look) == every
