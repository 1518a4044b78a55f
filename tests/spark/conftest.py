"""One local Spark session and one standalone cluster for all tests of a run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.clock import Clock
from tests.spark.cluster import PAGE, SPARK_HOME
from tests.spark.reading import TOPIC
from tests.waiting import PATIENCE_SECONDS, until

from duewheel.embedded.machine import free_port
from duewheel.spark.runtimes import spark_environment
from duewheel.spark.session import spark_session
from duewheel.store.broker import Broker


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test of a session starts a JVM, on whatever machine."""
    for item in items:
        if item.path.parent == Path(__file__).parent and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(1200))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A real session with two cores, in which a task may fail twice before its job does.

    Its JVM is a Connect server as well, on a port of its choice.
    """
    conf = {
        # A shuffle of ten rows is no work for 200 tasks.
        "spark.sql.shuffle.partitions": "2",
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
    }
    with spark_session("tests", master="local[2,3]", conf=conf) as session:
        yield session


@pytest.fixture(scope="session")
def connect_server(spark: SparkSession) -> str:
    """The address of the Connect server."""
    # Scala's way to name an object, which Python can only spell so.
    name = "org.apache.spark.sql.connect.service.SparkConnectService$"
    service = getattr(getattr(spark._jvm, name), "MODULE$")
    return f"sc://127.0.0.1:{service.localPort()}"


@pytest.fixture
def orders(broker: Broker) -> Broker:
    """A broker with a topic."""
    broker.create_topic(TOPIC)
    return broker


@pytest.fixture
def timed_orders(timed_broker: Broker, clock: Clock) -> Broker:
    """The same at the time of ``clock``, two hours ago: executors read by the database's clock."""
    clock.set(datetime.now(UTC) - timedelta(hours=2))
    timed_broker.create_topic(TOPIC)
    return timed_broker


#: Runs the file on its command line in a process of its own, without a JVM.
SUBMIT = f"""#!/bin/sh
for word; do
    shift
    case $word in *.py) {sys.executable} "$word" "$@"; exit $?;; esac
done
"""


@pytest.fixture
def spark3_submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection ``spark_default`` with a program that starts no JVM in the place of spark-submit."""
    program = tmp_path / "spark3-submit"
    program.write_text(SUBMIT)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    extra = json.dumps({"spark-binary": program.name})
    monkeypatch.setenv(
        "AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[1]", "extra": extra})
    )


@pytest.fixture(scope="session")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a master that has two workers, as docs/how-to/spark-cluster.md starts them."""
    folder = tmp_path_factory.mktemp("cluster")
    port, web_port = free_port(), free_port()
    address = f"spark://127.0.0.1:{port}"
    environment = {
        **os.environ,
        **spark_environment(),
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_DAEMON_JAVA_OPTS": os.environ["SPARK_SUBMIT_OPTS"],
    }

    def start(stack: ExitStack, *command: str) -> None:
        process = subprocess.Popen(
            command, env=environment, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        stack.callback(process.wait, PATIENCE_SECONDS)
        stack.callback(process.terminate)

    def alive_workers() -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{web_port}/json/") as answer:
                alive: int = json.load(answer)["aliveworkers"]
                return alive
        except (OSError, json.JSONDecodeError):
            # It is not there yet, or answers everything with its first page until this one is there.
            return 0

    with ExitStack() as stack:
        start(
            stack,
            *[str(SPARK_HOME / "bin" / "spark-class"), "org.apache.spark.deploy.master.Master"],
            *["--host", "127.0.0.1", "--port", str(port), "--webui-port", str(web_port)],
        )
        (worker,) = re.findall(r"^\$SPARK_HOME/bin/spark-class (\S+\.Worker) ", PAGE, re.MULTILINE)
        # Spark starts no copy of a task on the host where it runs already, and knows hosts by their names.
        for number, host in enumerate(("127.0.0.1", "localhost")):
            start(
                stack,
                *[str(SPARK_HOME / "bin" / "spark-class"), worker],
                *["--host", host, "--cores", "2", "--memory", "1g", "--webui-port", "0"],
                *["--work-dir", str(folder / f"worker-{number}"), address],
            )
        until(lambda: alive_workers() == 2, "two workers")
        yield address
