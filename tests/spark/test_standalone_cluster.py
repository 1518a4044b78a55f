"""A real standalone cluster: a master and two workers as processes of their own, on loopback."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest
from tests.proof.waiting import PATIENCE_SECONDS, until

from duewheel.spark.java_runtime import spark_environment

if TYPE_CHECKING:
    from duewheel.store.broker import Broker

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1200)]

TOPIC = "orders"
COUNT = 4_000
SPARK_HOME = Path(pyspark.__file__).parent


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a master that has two workers, as docs/how-to/spark-cluster.md starts them."""
    folder = tmp_path_factory.mktemp("cluster")
    port, web_port = free_port(), free_port()
    address = f"spark://127.0.0.1:{port}"
    environment = {**os.environ, **spark_environment(), "SPARK_HOME": str(SPARK_HOME)}

    def start(stack: ExitStack, *arguments: str) -> None:
        process = subprocess.Popen(
            [str(SPARK_HOME / "bin" / "spark-class"), *arguments],
            env=environment,
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        stack.callback(process.wait, PATIENCE_SECONDS)
        stack.callback(process.terminate)

    with ExitStack() as stack:
        where = ["--host", "127.0.0.1"]
        start(
            stack,
            "org.apache.spark.deploy.master.Master",
            *[*where, "--port", str(port), "--webui-port", str(web_port)],
        )
        for number in range(2):
            start(
                stack,
                "org.apache.spark.deploy.worker.Worker",
                *[*where, "--cores", "2", "--memory", "1g", "--webui-port", "0"],
                *["--work-dir", str(folder / f"worker-{number}"), address],
            )
        until(lambda: _alive_workers(web_port) == 2, "two workers")
        yield address


def _alive_workers(web_port: int) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{web_port}/json/") as answer:
            alive: int = json.load(answer)["aliveworkers"]
            return alive
    except OSError:
        return 0


DRIVER = """
import os, sys
from datetime import timedelta
from duewheel.spark import LeasedBatch, spark_session
from duewheel.store import Broker
from pyspark.sql.functions import udf

dsn, master, marks, what = sys.argv[1:]
conf = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.ui.enabled": "false",
}
if what == "speculation":
    conf |= {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.quantile": "0.25",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.minTaskRuntime": "100ms",
    }

def first_time(partition):
    try:
        os.close(os.open(f"{marks}/{partition}", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True

def kill_executor():
    import psutil, time
    for process in psutil.Process().parents():
        if process.name() == "java":
            process.kill()
            break
    # This Python worker is ended with its executor.
    time.sleep(600)

def disturbed(key):
    # In the middle of a part that is written.
    if key == "1000" and first_time("written"):
        if what == "killed executor":
            kill_executor()
        import time
        # Slow enough for Spark to start a copy.
        time.sleep(8)
    return key

def work(connection, batches):
    from pyspark.taskcontext import TaskContext
    import time
    partition = TaskContext.get().partitionId()
    keys = [key for batch in batches for key in batch["key"].to_pylist()]
    with connection.cursor() as cursor:
        cursor.execute("insert into effect select unnest(%s::text[])", (keys,))
    if partition == 2 and first_time(partition):
        if what == "killed executor":
            kill_executor()
        # Slow enough for Spark to start a copy, which waits at the fence.
        time.sleep(8)

with Broker(dsn) as broker, spark_session("cluster", master=master, conf=conf) as spark:
    batch = LeasedBatch.take(broker, "orders", "canceller", max_messages=4000, partitions=6)
    with batch.kept_alive():
        assert batch.dataframe(spark).select("key").distinct().count() == 4000
        assert batch.foreach_partition(spark, work, columns=["key"]) == 4000
    assert batch.outcome().acked == 4000
    key = udf(disturbed, "string", useArrow=False).asNondeterministic()
    rows = spark.range(0, 4000, 1, 6).selectExpr("cast(id as string) as body", "cast(id as string) as key")
    rows.withColumn("key", key("key")).write.format("duewheel").options(dsn=dsn, topic="written").mode(
        "append"
    ).save()
"""


@pytest.mark.parametrize("what", ["killed executor", "speculation"])
def test_x16_cluster_does_the_work_of_every_message_once_and_sends_once(
    broker: Broker, master: str, tmp_path: Path, what: str
) -> None:
    broker.create_topic(TOPIC)
    broker.create_topic("written", message_type="NORMAL")
    broker.send_many(
        TOPIC, [{"body": b"", "key": str(number), "delay": timedelta(0)} for number in range(COUNT)]
    )
    with broker.connection() as connection, connection.cursor() as cursor:
        cursor.execute("create table effect (key text)")

    marks = tmp_path / "marks"
    marks.mkdir()
    driver = subprocess.run(
        [sys.executable, "-c", DRIVER, broker.dsn, master, str(marks), what],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )

    assert driver.returncode == 0, driver.stdout + driver.stderr
    assert {mark.name for mark in marks.iterdir()} == {"2", "written"}
    with broker.connection() as connection, connection.cursor() as cursor:
        cursor.execute("select count(*), count(distinct key) from effect")
        assert cursor.fetchone() == (COUNT, COUNT)
        cursor.execute(
            "select count(*), count(distinct key) from duewheel.any_message m"
            " join duewheel.topic t using (topic_id) where t.name = 'written'"
        )
        assert cursor.fetchone() == (COUNT, COUNT)
