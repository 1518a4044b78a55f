"""``df.write`` where a column names the topic of each row: all of them or none, on all topics together."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from tests.conftest import execute
from tests.spark.test_writing import staged

from duewheel.spark.written_columns import StagedParts, staged_batches
from duewheel.store import Broker
from duewheel.store.values.errors import InvalidArgument

TOPICS = ("even", "odd")
BY_TOPIC = """
select t.name, array_agg(m.key::integer order by m.key::integer)
from duewheel.any_message m join duewheel.topic t using (topic_id) group by t.name
"""


def numbered(spark: SparkSession, count: int, partitions: int = 3) -> DataFrame:
    return spark.range(0, count, 1, partitions).selectExpr(
        "cast(id as string) as key", "'' as body", "60 as delay", "if(id % 2 = 0, 'even', 'odd') as topic"
    )


def write(frame: DataFrame, broker: Broker, **options: str) -> None:
    frame.write.format("duewheel").options(dsn=broker.dsn, **options).mode("append").save()


def found(broker: Broker) -> dict[str, list[int]]:
    return dict(execute(broker.dsn, BY_TOPIC))


@pytest.fixture
def topics(broker: Broker) -> Broker:
    for topic in TOPICS:
        broker.create_topic(topic)
    return broker


def test_a_column_names_the_topic_of_each_row(topics: Broker, spark: SparkSession) -> None:
    """Of all types; the option goes before the column, as with Kafka's sink."""
    topics.create_topic("plain", message_type="NORMAL")
    topics.create_topic("fifo", message_type="FIFO")
    rows = spark.createDataFrame(
        [("1", "plain", None, None), ("2", "even", 5, None), ("3", "fifo", None, "customer")],
        "key string, topic string, delay int, message_group string",
    )
    write(rows.withColumn("body", sf.lit("")), topics)
    assert found(topics) == {"plain": [1], "even": [2], "fifo": [3]}
    write(numbered(spark, 10), topics, topic="odd")
    assert found(topics)["odd"] == list(range(10))
    assert staged(topics.dsn) == (0, 0)


@pytest.mark.parametrize(
    ("topic", "wrong"),
    [
        ("'nowhere'", 'UnknownTopic: there is no topic "nowhere"'),
        ("'plain'", r"of the rows for topic 'plain', row 0 of partition 0 with the key \"51\": "),
    ],
)
def test_one_wrong_topic_and_nothing_is_sent_anywhere(
    topics: Broker, spark: SparkSession, topic: str, wrong: str
) -> None:
    topics.create_topic("plain", message_type="NORMAL")
    frame = numbered(spark, 100, 1).where("key >= 50")
    frame = frame.withColumn("topic", sf.expr(f"if(key = '51', {topic}, topic)"))
    with pytest.raises(PySparkException, match=wrong):
        write(frame, topics)
    assert found(topics) == {}
    assert staged(topics.dsn) == (0, 0)


def test_a_key_sends_once_on_each_topic(topics: Broker, spark: SparkSession) -> None:
    for _ in range(2):
        write(numbered(spark, 20), topics, idempotencyKey="nightly")
    with pytest.raises(PySparkException, match="sent 10 messages to topic 'odd' before, and this job has 11"):
        write(numbered(spark, 22).where("key <> '20'"), topics, idempotencyKey="nightly")
    assert {topic: len(keys) for topic, keys in found(topics).items()} == {"even": 10, "odd": 10}


def test_rows_of_a_topic_keep_their_order_over_batches() -> None:
    parts = StagedParts(None)
    names = ("topic", "key")
    batches = [
        pa.RecordBatch.from_pydict({"topic": list(topics), "key": list(keys)})
        for topics, keys in (("abab", "1234"), ("cb", "56"), ("a", "7"))
    ]
    rows = [row for batch in staged_batches(batches, names, parts) for row in batch.to_pylist()]
    by_part = {part.part_id: topic for topic, part in parts.by_topic.items()}
    assert [(by_part[row["part_id"]], row["place"], row["key"]) for row in rows] == [
        *(("a", 0, "1"), ("b", 0, "2"), ("a", 1, "3"), ("b", 1, "4")),
        *(("c", 0, "5"), ("b", 2, "6"), ("a", 2, "7")),
    ]
    assert {topic: part.count for topic, part in parts.by_topic.items()} == {"a": 3, "b": 3, "c": 1}
    missing = pa.RecordBatch.from_pydict({"topic": pa.array(["a", None]), "key": ["1", "2"]})
    with pytest.raises(InvalidArgument, match="row 1 of partition 0 with the key"):
        list(staged_batches([missing], names, parts))
