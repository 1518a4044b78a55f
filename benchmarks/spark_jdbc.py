"""Spark's own JDBC source and sink, the baselines of our reader and writer."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from benchmarks import plain_table
from benchmarks.server import connect
from duewheel.spark.session import spark_session

JDBC_DRIVER = Path("/usr/share/java/postgresql.jar")
PARTITIONS = 4
#: Java's compilers and Spark's Python workers take some runs to settle.
WARM_UP = 3
FETCH_SIZE = "10000"
DRIVER = "org.postgresql.Driver"

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
    workers = [pid for pid in _children(driver) if b"pyspark" in _read(pid, "cmdline")]
    worker = max(map(_peak_megabytes, workers), default=0)
    return f"memory at its peak: driver {_peak_megabytes(driver)} MB, largest Python worker {worker} MB"


def _children(parent: int) -> list[int]:
    """The processes below one, however deep."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            stat = _read(int(entry.name), "stat").rpartition(b")")[2].split()
            if stat:
                parents[int(entry.name)] = int(stat[1])
    found = [parent]
    for pid in found:
        found += [child for child, of in parents.items() if of == pid]
    return found[1:]


def _peak_megabytes(pid: int) -> int:
    for line in _read(pid, "status").splitlines():
        if line.startswith(b"VmHWM:"):
            return int(line.split()[1]) // 1024
    return 0


def _read(pid: int, what: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{what}").read_bytes()
    except OSError:
        # The process has ended.
        return b""
