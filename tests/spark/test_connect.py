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
