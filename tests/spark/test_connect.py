"""Spark Connect: the same batch from a client that has neither a JVM nor the messages."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.airflow_runs import connection_json

if TYPE_CHECKING:
    from duewheel.store.broker import Broker

pytestmark = [pytest.mark.spark, pytest.mark.slow]

TOPIC = "orders"
GROUP = "canceller"

SERVER = """
import sys
from duewheel.spark.session import spark_session

conf = {
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": sys.argv[1],
}
with spark_session("connect server", conf=conf):
    print("ready", flush=True)
    sys.stdin.read()
"""

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


@pytest.fixture
def connect_server(tmp_path: Path) -> Iterator[str]:
    """The address of a Connect server of this test alone."""
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=tmp_path,
        text=True,
    )
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        assert any("ready" in line for line in server.stdout)
        yield f"sc://127.0.0.1:{port}"
    finally:
        server.stdin.close()
        server.wait(60)
        server.stdout.close()


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
        timeout=200,
    )

    assert client.returncode == 0, client.stdout + client.stderr
    assert not broker.consumer(TOPIC, GROUP).receive()
