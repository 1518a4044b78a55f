"""Messages into and out of Spark's DataFrames, against Spark's own JDBC source and sink on the same rows.

Both sides work in one local session with two cores. A read hands its rows to Spark's sink that throws them
away, so that only the read is measured. The JDBC source reads a plain table of the same rows, in as many
parallel parts as ours, with a large fetch size. Ours takes the lease within the measured time; the stream
begins with a new checkpoint and reads the whole backlog.

Rows to write are made by Spark and kept in its memory before. Ours sends them all or none; the JDBC sink
commits each partition separately, in batches of 10 000 rows, into a table that has the primary key.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import partial

from pyspark.sql import DataFrame, SparkSession

from benchmarks import ours
from benchmarks.bench import Bench, Subject, seconds
from benchmarks.measure import Goal, Row, thousands
from benchmarks.server import query, settle
from benchmarks.spark_jdbc import (
    DRIVER,
    FETCH_SIZE,
    PARTITIONS,
    WARM_UP,
    copy_over,
    filled,
    jdbc_url,
    missing,
    pair_row,
    read_all,
    session,
    taken,
)
from duewheel.store import Broker

WRITTEN = """
DROP TABLE IF EXISTS written;
CREATE TABLE written (
    queue smallint NOT NULL, deliver_at timestamptz NOT NULL, seq bigint NOT NULL,
    born_at timestamptz NOT NULL DEFAULT clock_timestamp(), key text, body bytea NOT NULL,
    PRIMARY KEY (queue, deliver_at, seq)
)
"""
#: The sizes of messages: the name, the bytes of a body, and how many there are in a full run and a quick one.
SMALL, LARGE = ("small", 100, 1_000_000, 100_000), ("large", 10_000, 100_000, 10_000)


def _group(name: str, pair: int) -> str:
    return f"{ours.GROUP}-{name}-{pair + WARM_UP}"


def _consume(spark: SparkSession, dsn: str, count: int, columns: list[str] | None, pair: int) -> None:
    with Broker(dsn) as broker:
        batch = taken(broker, count, _group("key" if columns else "all", pair))
        read_all(batch.on(spark, columns).messages)


def _look(spark: SparkSession, dsn: str, _pair: int) -> None:
    read_all(spark.read.format("duewheel").option("dsn", dsn).load(ours.TOPIC))


def stream(spark: SparkSession, dsn: str, sink: Callable[[DataFrame, int], None], _pair: int = 0) -> None:
    """Read all that is released, from a new checkpoint on, in micro-batches of the usual size."""
    with tempfile.TemporaryDirectory() as checkpoint:
        messages = spark.readStream.format("duewheel").option("dsn", dsn).load(ours.TOPIC)
        query = messages.writeStream.foreachBatch(sink).trigger(availableNow=True)
        query.option("checkpointLocation", checkpoint).start().awaitTermination()


def _jdbc_read(spark: SparkSession, url: str, columns: str, _pair: int) -> None:
    """The plain table, by its queues in parallel."""
    parts = [f"queue = {queue}" for queue in range(PARTITIONS)]
    properties = {"fetchsize": FETCH_SIZE, "driver": DRIVER}
    read_all(spark.read.jdbc(url, "plain", predicates=parts, properties=properties).select(columns))


def spark_read(bench: Bench) -> Iterator[Row]:
    """Messages per second into a DataFrame."""
    with session() as spark:
        for (size, body_bytes, *counts), goals in ((SMALL, (0.9, 0.7, 0.8, 0.7)), (LARGE, (1.2,))):
            count = bench.size(*counts)
            with filled(bench, count, body_bytes) as dsn:
                copy_over(dsn)
                settle(dsn)
                url = jdbc_url(dsn)
                consume = partial(_consume, spark, dsn, count)
                follow = partial(stream, spark, dsn, lambda messages, _number: read_all(messages))
                reads: tuple[tuple[str, str, Callable[[int], None], str], ...] = (
                    ("read-leasing", "all columns, leasing them included", partial(consume, None), "*"),
                    ("read-key", "the key only, leasing them included", partial(consume, ["key"]), "key"),
                    ("look", "by a look", partial(_look, spark, dsn), "*"),
                    ("stream", "by a stream that catches up", follow, "*"),
                )
                for (name, how, read, columns), goal in zip(reads, goals, strict=False):
                    yield pair_row(
                        bench,
                        spark,
                        f"spark-{name}-{size}",
                        f"Spark read of {thousands(count)} messages of {thousands(body_bytes)} bytes, {how}",
                        count,
                        read,
                        partial(_jdbc_read, spark, url, columns),
                        f"Spark's JDBC source on the same rows, {PARTITIONS} parts",
                        goal,
                    )


def spark_first_row(bench: Bench) -> Iterator[Row]:
    """Seconds from the call until the first of ten messages is there, in a warm session.

    A read that ends early costs its Python worker: the next read waits for a new one, and that imports
    pyarrow.
    """
    with session() as spark, filled(bench, 10) as dsn, Broker(dsn) as broker:

        def read(pair: int) -> float:
            return seconds(lambda: taken(broker, 10, _group("first", pair)).on(spark).messages.first())

        readings = [read(pair) for pair in range(-WARM_UP, bench.pairs)]
        yield Row(
            "spark-first-of-ten",
            "the first of ten messages by `first()`, in a warm session",
            "s",
            readings[WARM_UP:],
            goals=[Goal(0.5, "at most", "ours")],
        )


def made_rows(spark: SparkSession, count: int, body_bytes: int = 100) -> DataFrame:
    """Rows to send, due from an hour ahead on."""
    return spark.range(0, count, 1, PARTITIONS).selectExpr(
        "id as seq",
        "cast(id % 4 as smallint) as queue",
        "cast(id as string) as key",
        "timestamp_millis(unix_millis(now()) + 3600000 + id % 600000) as deliver_at",
        f"cast(repeat(md5(cast(id as string)), {-(-body_bytes // 32)}) as binary) as body",
    )


def send(frame: DataFrame, dsn: str, _pair: int = 0) -> None:
    """Send the rows, all or none."""
    written = frame.select("body", "key", "deliver_at").write.format("duewheel")
    written.options(dsn=dsn, topic=ours.TOPIC).mode("append").save()


def _jdbc_write(frame: DataFrame, dsn: str, url: str, _pair: int) -> None:
    query(dsn, WRITTEN)
    properties = {"driver": DRIVER, "batchsize": FETCH_SIZE, "reWriteBatchedInserts": "true"}
    sent = frame.select("queue", "deliver_at", "seq", "key", "body").write
    sent.jdbc(url, "written", mode="append", properties=properties)


def spark_write(bench: Bench) -> Iterator[Row]:
    """Messages per second out of a DataFrame."""
    with session() as spark:
        for (size, body_bytes, *counts), goal in ((SMALL, 1.0), (LARGE, 1.2)):
            count = bench.size(*counts)
            with bench.server.duewheel() as dsn:
                ours.create_topic(dsn)
                frame = made_rows(spark, count, body_bytes).persist()
                frame.count()
                yield pair_row(
                    bench,
                    spark,
                    f"spark-write-{size}",
                    f"Spark write of {thousands(count)} messages of {thousands(body_bytes)} bytes",
                    count,
                    partial(send, frame, dsn),
                    partial(_jdbc_write, frame, dsn, jdbc_url(dsn)),
                    f"Spark's JDBC sink, {PARTITIONS} parts, rewritten batches of {FETCH_SIZE}",
                    goal,
                )
                frame.unpersist()


SUBJECTS = [
    Subject("spark-read", "Spark reads of small and large messages against JDBC", spark_read, missing),
    Subject("spark-first-row", "Spark's first row of ten messages", spark_first_row, missing),
    Subject("spark-write", "Spark writes against the JDBC sink", spark_write, missing),
]
