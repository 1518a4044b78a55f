"""What the benchmarks of Spark share: a session, messages to read, and Spark's own JDBC source and sink."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from benchmarks import ours, tables
from benchmarks.bench import Bench
from benchmarks.messages import HOUR, now
from benchmarks.server import connect, query
from duewheel.spark import Batch
from duewheel.spark.session import spark_session
from duewheel.store import Broker

JDBC_DRIVER = Path("/usr/share/java/postgresql.jar")
PARTITIONS = 4
FETCH_SIZE = "10000"
DRIVER = "org.postgresql.Driver"
COLUMNS = "topic_id, queue, deliver_at, seq, born_at, asked_at, tag, key, properties, message_group, body"


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


@contextmanager
def filled(bench: Bench, count: int, body_bytes: int = 100) -> Iterator[str]:
    """A database whose topic has `count` messages that are due, with keys."""
    with bench.server.duewheel() as dsn:
        ours.create_topic(dsn)
        at = now() - 2 * HOUR
        ours.fill(dsn, count, start=at, within=HOUR, at=at, body_bytes=body_bytes, with_key=True)
        yield dsn


def taken(broker: Broker, count: int, group: str) -> Batch:
    """`count` messages, leased."""
    return Batch.take(broker, ours.TOPIC, group, max_messages=count, invisible=HOUR, partitions=PARTITIONS)


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
    query(plain_dsn, tables.PLAIN)
    with (
        closing(connect(ours_dsn)) as source,
        closing(connect(plain_dsn)) as target,
        tempfile.TemporaryFile() as rows,
        source.cursor() as reading,
        target.cursor() as writing,
    ):
        reading.copy_expert(
            f"COPY (SELECT {COLUMNS} FROM duewheel.any_message) TO STDOUT (FORMAT binary)", rows
        )
        rows.seek(0)
        writing.copy_expert(f"COPY plain ({COLUMNS}) FROM STDIN (FORMAT binary)", rows)
