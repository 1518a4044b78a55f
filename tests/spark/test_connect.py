"""Spark Connect: reading, work by partition and writing, by a client that has neither JVM nor messages.

One client does all of it, on one session; each test looks at what became of a part.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from psycopg2.extensions import make_dsn, parse_dsn
from tests.airflow_runs import connection_json

from duewheel.store import Broker
from duewheel.store.consuming.consumer import Consumer

pytestmark = [pytest.mark.slow, pytest.mark.long]

COUNT = 10
#: With this an error begins, after the words of Spark.
TOLD = "duewheel.store.values.errors.InvalidArgument"

CLIENT = """
import json, sys
from datetime import timedelta
from airflow.sdk import Context
from duewheel.operators.spark import SparkConsumeMessagesOperator
from duewheel.spark import Batch, register, spark_session
from duewheel.store import Broker

dsn, address, folder = sys.argv[1:]
said = {}

def read(batch):
    messages = batch.messages
    said["session"] = type(batch.spark).__module__
    # Each of these analyses the plan again on the server; the lease must be the same one.
    said["counts"] = [
        messages.count(),
        messages.where("attempt = 1").count(),
        len({row.key for row in messages.select("key").collect()}),
        messages.join(messages.select("message_id"), "message_id").count(),
    ]

def work(connection, batches):
    for batch in batches:
        with connection.cursor() as cursor:
            cursor.execute("insert into effect select unnest(%s::text[])", (batch["key"].to_pylist(),))

def first_line(call):
    try:
        call()
    except Exception as error:
        return str(error)
    return "no error"

with Broker(dsn) as broker, spark_session("client", master=address) as spark:
    said["hidden"] = spark.conf.get("spark.sql.redaction.string.regex")
    operator = SparkConsumeMessagesOperator(
        task_id="connect", topic="read", group="readers", python_callable=read, spark_conn_id="spark_default"
    )
    said["operator"] = operator.execute(Context())

    batch = Batch.take(broker, "work", "workers")
    said["done"] = batch.on(spark, ["key"]).foreach_partition(work)
    said["acked"] = batch.outcome().acked

    batch = Batch.take(broker, "bad", "rejecters")
    orders = batch.on(spark, ["key", "message_id"]).messages
    bad = orders.where("key < '3'").selectExpr("message_id", "concat('bad ', key) as reason")
    said["rejected"] = batch.reject(bad, delay=timedelta(0))
    said["left"] = sorted(row.key for row in batch.on(spark, ["key"]).messages.collect())
    foreign = spark.createDataFrame([("0" * 44,)], "message_id string")
    said["foreign"] = first_line(lambda: batch.reject(foreign, "not there"))
    batch.ack()

    source = spark.read.format("duewheel").options(dsn=dsn, topic="peek")
    said["peeked"] = source.option("columns", "key").load().distinct().count()
    unleased = spark.read.format("duewheel").options(dsn=dsn, topic="look", group="lookers")
    said["unleased"] = first_line(lambda: unleased.load().count())

    rows = spark.range(10).selectExpr("cast(id as string) as body", "cast(id as string) as key")
    def write(**options):
        writer = rows.write.format("duewheel").options(dsn=dsn, topic="written", **options)
        writer.mode("append").save()
    write(idempotencyKey="once")
    write(idempotencyKey="once")
    said["unknown"] = first_line(lambda: write(colour="red"))

    stream = spark.readStream.format("duewheel").options(dsn=dsn, topic="flowing", group="flow").load()
    query = (
        stream.selectExpr("body", "key").writeStream.format("duewheel")
        .options(dsn=dsn, topic="streamed", checkpointLocation=f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()

    # Connect does not tell a setting with this word.
    spark.conf.set("spark.sql.redaction.string.regex", "(?i)password=.+|card-[0-9]+")
    register(spark)
    said["own"] = spark.sql("SET spark.sql.redaction.string.regex").collect()[0].value

with open(f"{folder}/said.json", "w") as file:
    json.dump(said, file)
"""


@pytest.fixture(scope="module")
def broker(fresh_database: Callable[[], tuple[str, str]]) -> Iterator[Broker]:
    """A broker for all tests of this module."""
    with Broker(fresh_database()[1]) as broker:
        yield broker


@pytest.fixture(scope="module")
def said(broker: Broker, connect_server: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the client saw."""
    for topic in ("read", "work", "bad", "peek", "look", "flowing"):
        broker.create_topic(topic)
        broker.send_many(
            topic, [{"body": b"", "key": str(number), "delay": timedelta(0)} for number in range(COUNT)]
        )
    for topic in ("written", "streamed"):
        broker.create_topic(topic, message_type="NORMAL")
    with broker.connection() as connection, connection.cursor() as cursor:
        cursor.execute("create table effect (key text)")
    folder = tmp_path_factory.mktemp("client")
    client = subprocess.run(
        [sys.executable, "-c", CLIENT, broker.dsn, connect_server, str(folder)],
        cwd=folder,
        env={
            **os.environ,
            "AIRFLOW_CONN_DUEWHEEL_DEFAULT": connection_json(broker.dsn),
            "AIRFLOW_CONN_SPARK_DEFAULT": connect_server,
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=1000,
    )
    assert client.returncode == 0, client.stdout + client.stderr
    answer: dict[str, Any] = json.loads((folder / "said.json").read_text())
    return answer


def keys(consumer: Consumer) -> list[int]:
    """The keys of all that the consumer is given."""
    found = []
    while batch := consumer.receive():
        found += [int(message.key or "") for message in batch]
        consumer.ack(batch)
    return sorted(found)


def test_operator_runs_on_spark_connect(broker: Broker, said: dict[str, Any]) -> None:
    assert said["session"].startswith("pyspark.sql.connect")
    assert said["counts"] == [COUNT] * 4
    assert said["operator"] == COUNT
    assert keys(broker.consumer("read", "readers")) == []


def test_x16_work_and_ack_by_partition_on_spark_connect(broker: Broker, said: dict[str, Any]) -> None:
    assert (said["done"], said["acked"]) == (COUNT, COUNT)
    with broker.connection() as connection, connection.cursor() as cursor:
        cursor.execute("select count(*), count(distinct key) from effect")
        assert cursor.fetchone() == (COUNT, COUNT)


def test_r03_r14_rejects_on_spark_connect(broker: Broker, said: dict[str, Any]) -> None:
    """Each comes again with its reason, and the others are acked."""
    assert said["rejected"] == 3
    assert said["left"] == [str(number) for number in range(3, COUNT)]
    assert "1 of the 1 messages are not of this batch" in said["foreign"]
    assert keys(broker.consumer("bad", "rejecters")) == [0, 1, 2]
    (found,) = broker.find_key("bad", "1")
    assert [entry.reason for entry in broker.history(found.message_id) if entry.reason] == ["bad 1"]


def test_looking_on_spark_connect_leases_nothing(broker: Broker, said: dict[str, Any]) -> None:
    assert said["peeked"] == COUNT
    assert {topic.topic: topic.groups for topic in broker.stats().topics}["peek"] == ()


def test_read_of_a_group_is_refused_on_spark_connect(broker: Broker, said: dict[str, Any]) -> None:
    assert f": {TOLD}: a look reads for no group" in said["unleased"]
    assert keys(broker.consumer("look", "lookers")) == list(range(COUNT))


def test_a_connect_server_shows_no_password(broker: Broker, said: dict[str, Any]) -> None:
    """It shows the options of each request, but for what matches the pattern of the session."""
    password = parse_dsn(broker.dsn)["password"]
    for dsn in (broker.dsn, make_dsn("", **parse_dsn(broker.dsn))):
        assert password in dsn
        shown = re.sub(said["hidden"], "", f'dsn" value: "{dsn}" lease')
        assert password not in shown
        assert shown.endswith('" lease')


def test_a_pattern_of_the_server_stays_on_spark_connect(said: dict[str, Any]) -> None:
    """A Connect server tells only the pattern of ``register``, which has not the very word."""
    assert "redacted" in said["own"]
    assert "passwor[d]" in said["hidden"]


def test_a_client_of_spark_connect_sends_once(broker: Broker, said: dict[str, Any]) -> None:
    assert f": {TOLD}: unknown options ['colour']" in said["unknown"]
    assert keys(broker.consumer("written", "readers")) == list(range(COUNT))


def test_a_stream_of_spark_connect_is_read_and_sent_once(broker: Broker, said: dict[str, Any]) -> None:
    assert keys(broker.consumer("streamed", "readers")) == list(range(COUNT))
