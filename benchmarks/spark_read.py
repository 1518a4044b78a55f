"""A million leased messages into a Spark DataFrame, against Spark's own JDBC source on the same rows.

Both read all columns in one local session with two cores and hand them to Spark's sink that throws rows away,
so that what is measured is the read. The JDBC source reads a plain table of the same rows, in as many
parallel parts as ours, with a large fetch size. A second line has the taking of the lease in the measured
time.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing
from datetime import timedelta
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from benchmarks import ours, plain_table
from benchmarks.bench import Bench, Subject, rate
from benchmarks.measure import Goal, Row, interleave, thousands
from benchmarks.server import connect, settle
from duewheel.spark.leasing import lease_messages
from duewheel.spark.session import spark_session
from duewheel.store import Broker
from duewheel.store.leases import to_json

JDBC_DRIVER = Path("/usr/share/java/postgresql.jar")
PARTITIONS = 4
#: Java's compilers and Spark's Python workers take some runs to settle.
WARM_UP = 3
FETCH_SIZE = "10000"
HOUR = timedelta(hours=1)

SAME_ROWS = """
COPY (SELECT topic_id, queue, deliver_at, seq, born_at, asked_at, tag, key, properties, message_group, body
        FROM duewheel.any_message) TO STDOUT (FORMAT binary)
"""
INTO_PLAIN = """
COPY plain (topic_id, queue, deliver_at, seq, born_at, asked_at, tag, key, properties, message_group, body)
  FROM STDIN (FORMAT binary)
"""


def missing() -> str:
    """What to install where the JDBC driver is not there."""
    if JDBC_DRIVER.exists():
        return ""
    return f"Postgres's JDBC driver is not at {JDBC_DRIVER}: install libpostgresql-jdbc-java (Debian, Ubuntu)"


def _read_all(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _jdbc_url(dsn: str) -> str:
    """The address for JDBC, with a login of its own: the driver wants passwords of 4096 iterations."""
    password = secrets.token_hex(16)
    with closing(connect(dsn)) as connection, connection.cursor() as cursor:
        cursor.execute("SET scram_iterations = 4096")
        cursor.execute("CREATE ROLE jdbc LOGIN IN ROLE pg_read_all_data PASSWORD %s", (password,))
        where = connection.info
        return f"jdbc:postgresql://{where.host}:{where.port}/{where.dbname}?user=jdbc&password={password}"


def _group(what: str, pair: int) -> str:
    return f"{ours.GROUP}-{what}-{pair + WARM_UP}"


def _ours_leased(spark: SparkSession, dsn: str, count: int, pair: int) -> float:
    """The read of messages that are leased, as by the operator, before Spark begins."""
    with Broker(dsn) as broker:
        leases = lease_messages(
            broker, broker.consumer(ours.TOPIC, _group("leased", pair)), max_messages=count, invisible=HOUR
        )
    frame = spark.read.format("duewheel").option("dsn", dsn).option("partitions", str(PARTITIONS))
    return rate(count, lambda: _read_all(frame.option("lease", to_json(leases)).load()))


def _ours_leasing(spark: SparkSession, dsn: str, count: int, pair: int) -> float:
    """The read with the lease taken by the data source."""
    frame = (
        spark.read.format("duewheel")
        .option("dsn", dsn)
        .option("partitions", str(PARTITIONS))
        .option("topic", ours.TOPIC)
        .option("group", _group("leasing", pair))
        .option("max_messages", str(count))
    )
    return rate(count, lambda: _read_all(frame.load()))


def _jdbc(spark: SparkSession, url: str, count: int, _pair: int) -> float:
    def read() -> None:
        _read_all(
            spark.read.jdbc(
                url,
                "plain",
                predicates=[f"queue = {queue}" for queue in range(PARTITIONS)],
                properties={"fetchsize": FETCH_SIZE, "driver": "org.postgresql.Driver"},
            )
        )

    return rate(count, read)


def spark_read(bench: Bench) -> Iterator[Row]:
    """Messages per second into a DataFrame."""
    count = bench.size(1_000_000, 100_000)
    with ExitStack() as stack:
        ours_dsn = stack.enter_context(bench.server.duewheel())
        plain_dsn = stack.enter_context(bench.server.empty())
        at = ours.now() - 2 * HOUR
        ours.create_topic(ours_dsn)
        ours.fill(ours_dsn, count, start=at, within=HOUR, at=at)
        _copy_over(ours_dsn, plain_dsn)
        for dsn in (ours_dsn, plain_dsn):
            settle(dsn)
        spark = stack.enter_context(
            spark_session("benchmark", master="local[2]", conf={"spark.jars": str(JDBC_DRIVER)})
        )
        url = _jdbc_url(plain_dsn)
        for name, what, side, goals in (
            ("spark-read", "leased messages, all columns", _ours_leased, [Goal(0.7, "at least")]),
            ("spark-read-leasing", "messages, all columns, leasing them included", _ours_leasing, []),
        ):
            yield Row(
                name,
                f"Spark read of {thousands(count)} {what}",
                "messages/s",
                *interleave(
                    partial(side, spark, ours_dsn, count),
                    partial(_jdbc, spark, url, count),
                    pairs=bench.pairs,
                    warm_up=WARM_UP,
                ),
                f"Spark's JDBC source on the same rows, {PARTITIONS} parts",
                goals,
            )


def _copy_over(ours_dsn: str, plain_dsn: str) -> None:
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


SUBJECTS = [Subject("spark-read", "Spark read of 1 000 000 against the JDBC source", spark_read, missing)]
