"""Spark's own JDBC source and sink, the baselines of our reader and writer."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from benchmarks import plain_table
from benchmarks.process_memory import descendants, peak_bytes, told
from benchmarks.server import connect
from duewheel.spark.session import spark_session

JDBC_DRIVER = Path("/usr/share/java/postgresql.jar")
PARTITIONS = 4
#: Java's compilers and Spark's Python workers take some runs to settle.
WARM_UP = 3
FETCH_SIZE = "10000"
DRIVER = "org.postgresql.Driver"
MEBIBYTE = 1 << 20

SAME_ROWS = """
COPY (SELECT topic_id, queue, deliver_at, seq, born_at, asked_at, tag, key, properties, message_group, body
        FROM duewheel.any_message) TO STDOUT (FORMAT binary)
"""
INTO_PLAIN = """
COPY plain (topic_id, queue, deliver_at, seq, born_at, asked_at, tag, key, properties, message_group, body)
  FROM STDIN (FORMAT binary)
"""


def missing() -> str:
    """The package to install if the JDBC driver is missing."""
    if JDBC_DRIVER.exists():
        return ""
    return f"Postgres's JDBC driver is not at {JDBC_DRIVER}: install libpostgresql-jdbc-java (Debian, Ubuntu)"


@contextmanager
def session() -> Iterator[SparkSession]:
    """A local session with two cores that knows the driver."""
    with spark_session("benchmark", master="local[2]", conf={"spark.jars": str(JDBC_DRIVER)}) as spark:
        yield spark


def jdbc_url(dsn: str) -> str:
    """The address for JDBC, with a login of its own: the driver wants passwords of 4096 iterations.

    The login may do all that a job does, in this database.
    """
    name, password = f"jdbc_{secrets.token_hex(4)}", secrets.token_hex(16)
    with closing(connect(dsn)) as connection, connection.cursor() as cursor:
        cursor.execute("SET scram_iterations = 4096")
        cursor.execute(
            f"CREATE ROLE {name} LOGIN IN ROLE pg_read_all_data, pg_write_all_data PASSWORD %s", (password,)
        )
        cursor.execute(f"GRANT ALL ON SCHEMA public TO {name}")
        where = connection.info
        return f"jdbc:postgresql://{where.host}:{where.port}/{where.dbname}?user={name}&password={password}"


def read_all(frame: DataFrame) -> None:
    """Read all rows and throw them away."""
    frame.write.format("noop").mode("overwrite").save()


def jdbc_read(spark: SparkSession, url: str, columns: str = "*") -> DataFrame:
    """The plain table, by its queues in parallel."""
    return spark.read.jdbc(
        url,
        "plain",
        predicates=[f"queue = {queue}" for queue in range(PARTITIONS)],
        properties={"fetchsize": FETCH_SIZE, "driver": DRIVER},
    ).select(columns)


def copy_over(ours_dsn: str, plain_dsn: str) -> None:
    """The same rows into the plain table, through a file of the operating system."""
    with (
        closing(connect(ours_dsn)) as source,
        closing(connect(plain_dsn)) as target,
        tempfile.TemporaryFile() as rows,
        source.cursor() as reading,
        target.cursor() as writing,
    ):
        plain_table.create(target)
        reading.copy_expert(SAME_ROWS, rows)
        rows.seek(0)
        writing.copy_expert(INTO_PLAIN, rows)


def memory(spark: SparkSession) -> str:
    """The most that the driver and a Python worker have held so far, for a row's notes."""
    driver = int(spark._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr] # a classic session has one
    workers = [pid for pid in descendants(driver) if b"pyspark" in told(pid, "cmdline")]
    worker = max(map(peak_bytes, workers), default=0)
    return (
        f"memory at its peak: driver {peak_bytes(driver) // MEBIBYTE} MB, "
        f"largest Python worker {worker // MEBIBYTE} MB"
    )
