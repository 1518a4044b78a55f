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
    """A real session with two cores, in which a task may fail twice before its job does."""
    with spark_session("tests", master="local[2,3]") as session:
        yield session
