"""One local Spark session for all tests of a run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from duewheel.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
