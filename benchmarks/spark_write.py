"""Messages out of a Spark DataFrame, against Spark's JDBC sink into a plain table with the same columns.

The rows are made by Spark and kept in its memory before. Ours sends them all or none; the JDBC sink commits
each partition by itself, in batches of 10 000 rows, and writes into a table that has the primary key.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial

from pyspark.sql import DataFrame, SparkSession

from benchmarks import ours
from benchmarks.bench import Bench, Subject, rate
from benchmarks.measure import Goal, Row, interleave, thousands
from benchmarks.server import connect
from benchmarks.spark_jdbc import DRIVER, FETCH_SIZE, PARTITIONS, jdbc_url, memory, missing, session

WRITTEN = """
CREATE TABLE written (
    queue smallint NOT NULL, deliver_at timestamptz NOT NULL, seq bigint NOT NULL,
    born_at timestamptz NOT NULL DEFAULT clock_timestamp(), key text, body bytea NOT NULL,
    PRIMARY KEY (queue, deliver_at, seq)
)
"""


def _rows(spark: SparkSession, count: int, body_bytes: int) -> DataFrame:
    frame = spark.range(0, count, 1, PARTITIONS).selectExpr(
        "id as seq",
        "cast(id % 4 as smallint) as queue",
        "cast(id as string) as key",
        "timestamp_millis(unix_millis(now()) + 3600000 + id % 600000) as deliver_at",
        f"cast(repeat(md5(cast(id as string)), {-(-body_bytes // 32)}) as binary) as body",
    )
    frame = frame.persist()
    frame.count()
    return frame


def _ours(frame: DataFrame, dsn: str, count: int, _pair: int) -> float:
    written = frame.select("body", "key", "deliver_at").write.format("duewheel")
    return rate(count, written.options(dsn=dsn, topic=ours.TOPIC).mode("append").save)


def _jdbc(frame: DataFrame, dsn: str, url: str, count: int, _pair: int) -> float:
    with closing(connect(dsn)) as connection, connection.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS written")
        cursor.execute(WRITTEN)
    properties = {"driver": DRIVER, "batchsize": FETCH_SIZE, "reWriteBatchedInserts": "true"}
    return rate(
        count,
        lambda: frame.select("queue", "deliver_at", "seq", "key", "body").write.jdbc(
            url, "written", mode="append", properties=properties
        ),
    )


def _measured(bench: Bench, spark: SparkSession, count: int, body_bytes: int, size: str, goal: float) -> Row:
    with ExitStack() as stack:
        ours_dsn = stack.enter_context(bench.server.duewheel())
        plain_dsn = stack.enter_context(bench.server.empty())
        ours.create_topic(ours_dsn)
        frame = _rows(spark, count, body_bytes)
        try:
            return Row(
                f"spark-write-{size}",
                f"Spark write of {thousands(count)} messages of {thousands(body_bytes)} bytes",
                "messages/s",
                *interleave(
                    partial(_ours, frame, ours_dsn, count),
                    partial(_jdbc, frame, plain_dsn, jdbc_url(plain_dsn), count),
                    pairs=bench.pairs,
                    warm_up=1,
                ),
                f"Spark's JDBC sink, {PARTITIONS} parts, rewritten batches of {FETCH_SIZE}",
                [Goal(goal, "at least")],
                notes=[memory(spark)],
            )
        finally:
            frame.unpersist()


def spark_write(bench: Bench) -> Iterator[Row]:
    """Messages per second out of a DataFrame."""
    with session() as spark:
        yield _measured(bench, spark, bench.size(1_000_000, 100_000), 100, "small", 0.9)
        yield _measured(bench, spark, bench.size(100_000, 10_000), 10_000, "large", 1.2)


SUBJECTS = [Subject("spark-write", "Spark writes against the JDBC sink", spark_write, missing)]
