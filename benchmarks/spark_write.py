"""Messages out of a Spark DataFrame, against Spark's JDBC sink into a plain table with the same columns.

The rows are made by Spark and kept in its memory before. Ours sends them all or none; the JDBC sink commits
each partition by itself, in batches of 10 000 rows, and writes into a table that has the primary key.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from pyspark.sql import DataFrame, SparkSession

from benchmarks import ours
from benchmarks.bench import Bench, Subject, rate
from benchmarks.measure import Goal, Row, interleave, thousands
from benchmarks.server import query
from benchmarks.spark_jdbc import DRIVER, FETCH_SIZE, PARTITIONS, jdbc_url, missing, session

WRITTEN = """
DROP TABLE IF EXISTS written;
CREATE TABLE written (
    queue smallint NOT NULL, deliver_at timestamptz NOT NULL, seq bigint NOT NULL,
    born_at timestamptz NOT NULL DEFAULT clock_timestamp(), key text, body bytea NOT NULL,
    PRIMARY KEY (queue, deliver_at, seq)
)
"""
JDBC = {"driver": DRIVER, "batchsize": FETCH_SIZE, "reWriteBatchedInserts": "true"}


def made_rows(spark: SparkSession, count: int, body_bytes: int = 100) -> DataFrame:
    """Rows to send, due from an hour ahead on."""
    return spark.range(0, count, 1, PARTITIONS).selectExpr(
        "id as seq",
        "cast(id % 4 as smallint) as queue",
        "cast(id as string) as key",
        "timestamp_millis(unix_millis(now()) + 3600000 + id % 600000) as deliver_at",
        f"cast(repeat(md5(cast(id as string)), {-(-body_bytes // 32)}) as binary) as body",
    )


def send(frame: DataFrame, dsn: str) -> None:
    """Send the rows, all or none."""
    written = frame.select("body", "key", "deliver_at").write.format("duewheel")
    written.options(dsn=dsn, topic=ours.TOPIC).mode("append").save()


def _ours(frame: DataFrame, dsn: str, count: int, _pair: int) -> float:
    return rate(count, lambda: send(frame, dsn))


def _jdbc(frame: DataFrame, dsn: str, url: str, count: int, _pair: int) -> float:
    query(dsn, WRITTEN)
    sent = frame.select("queue", "deliver_at", "seq", "key", "body").write
    return rate(count, lambda: sent.jdbc(url, "written", mode="append", properties=JDBC))


def spark_write(bench: Bench) -> Iterator[Row]:
    """Messages per second out of a DataFrame."""
    with session() as spark:
        for size, counts, body_bytes, goal in (
            ("small", (1_000_000, 100_000), 100, 0.9),
            ("large", (100_000, 10_000), 10_000, 1.2),
        ):
            count = bench.size(*counts)
            with bench.server.duewheel() as ours_dsn, bench.server.empty() as plain_dsn:
                ours.create_topic(ours_dsn)
                frame = made_rows(spark, count, body_bytes).persist()
                frame.count()
                yield Row(
                    f"spark-write-{size}",
                    f"Spark write of {thousands(count)} messages of {thousands(body_bytes)} bytes",
                    "messages/s",
                    *interleave(
                        partial(_ours, frame, ours_dsn, count),
                        partial(_jdbc, frame, plain_dsn, jdbc_url(plain_dsn), count),
                        pairs=bench.pairs,
                    ),
                    f"Spark's JDBC sink, {PARTITIONS} parts, rewritten batches of {FETCH_SIZE}",
                    [Goal(goal, "at least")],
                )
                frame.unpersist()


SUBJECTS = [Subject("spark-write", "Spark writes against the JDBC sink", spark_write, missing)]
