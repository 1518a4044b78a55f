"""Spark Connect: the same batch from a client that has neither a JVM nor the messages."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.airflow_runs import connection_json

if TYPE_CHECKING:
    from duewheel.store.broker import Broker

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1200)]

TOPIC = "orders"
GROUP = "canceller"

CLIENT = """
import sys
from airflow.sdk import Context
from duewheel.operators.spark import SparkConsumeMessagesOperator

def work(spark, messages, batch):
    assert type(spark).__module__.startswith("pyspark.sql.connect"), type(spark)
    # Each of these analyses the plan again on the server; the lease must be the same one.
    assert messages.count() == 10
    assert messages.where("attempt = 1").count() == 10
    assert sorted(int(row.key) for row in messages.select("key").collect()) == list(range(10))
    assert messages.join(messages.select("message_id"), "message_id").count() == 10

operator = SparkConsumeMessagesOperator(
    task_id="connect", topic="orders", group="canceller", python_callable=work, master=sys.argv[1]
)
assert operator.execute(Context()) == 10
"""


def test_operator_runs_on_spark_connect(
    broker: Broker, connect_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_DUEWHEEL_DEFAULT", connection_json(broker.dsn))
    broker.create_topic(TOPIC)
    broker.send_many(
        TOPIC, [{"body": b"", "key": str(number), "delay": timedelta(0)} for number in range(10)]
    )

    client = subprocess.run(
        [sys.executable, "-c", CLIENT, connect_server],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=1000,
    )

    assert client.returncode == 0, client.stdout + client.stderr
    assert not broker.consumer(TOPIC, GROUP).receive()


PARTITION_CLIENT = """
import sys
from duewheel.spark import LeasedBatch, spark_session
from duewheel.store import Broker

dsn, address = sys.argv[1:]

def work(connection, batches):
    for batch in batches:
        with connection.cursor() as cursor:
            cursor.execute("insert into effect select unnest(%s::text[])", (batch["key"].to_pylist(),))

with Broker(dsn) as broker, spark_session("connect", master=address) as spark:
    assert type(spark).__module__.startswith("pyspark.sql.connect"), type(spark)
    batch = LeasedBatch.take(broker, "orders", "canceller")
    assert batch.foreach_partition(spark, work, columns=["key"]) == 10
    assert batch.outcome().acked == 10
"""


def test_x16_work_and_ack_by_partition_on_spark_connect(
    broker: Broker, connect_server: str, tmp_path: Path
) -> None:
    broker.create_topic(TOPIC)
    broker.send_many(
        TOPIC, [{"body": b"", "key": str(number), "delay": timedelta(0)} for number in range(10)]
    )
    with broker.connection() as connection, connection.cursor() as cursor:
        cursor.execute("create table effect (key text)")

    client = subprocess.run(
        [sys.executable, "-c", PARTITION_CLIENT, broker.dsn, connect_server],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=1000,
    )

    assert client.returncode == 0, client.stdout + client.stderr
    with broker.connection() as connection, connection.cursor() as cursor:
        cursor.execute("select count(*), count(distinct key) from effect")
        assert cursor.fetchone() == (10, 10)
