"""Messages into a Spark DataFrame, against Spark's own JDBC source on the same rows.

Both read in one local session with two cores and hand the rows to Spark's sink that throws them away, so that
only the read is measured. The JDBC source reads a plain table of the same rows, in as many parallel parts as
ours, with a large fetch size. Except in one line, ours takes the lease within the measured time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from functools import partial

from pyspark.sql import DataFrame, SparkSession

from benchmarks import ours
from benchmarks.bench import Bench, Subject, rate, seconds
from benchmarks.measure import Goal, Row, interleave, thousands
from benchmarks.server import settle
from benchmarks.spark_jdbc import (
    PARTITIONS,
    WARM_UP,
    copy_over,
    jdbc_read,
    jdbc_url,
    memory,
    missing,
    read_all,
    session,
)
from duewheel.spark import LeasedBatch
from duewheel.store import Broker

HOUR = timedelta(hours=1)


def _group(what: str, pair: int) -> str:
    return f"{ours.GROUP}-{what}-{pair + WARM_UP}"


def _leased(spark: SparkSession, dsn: str, count: int, pair: int) -> float:
    """The read of messages that are leased, as by the operator, before Spark begins."""
    with Broker(dsn) as broker:
        batch = _taken(broker, count, _group("leased", pair))
        return rate(count, lambda: read_all(batch.dataframe(spark)))


def _leasing(
    spark: SparkSession, dsn: str, count: int, what: str, columns: list[str] | None, pair: int
) -> float:
    """The read with the lease that it takes."""

    def read() -> None:
        with Broker(dsn) as broker:
            read_all(_taken(broker, count, _group(what, pair)).dataframe(spark, columns))

    return rate(count, read)


def _taken(broker: Broker, count: int, group: str) -> LeasedBatch:
    return LeasedBatch.take(
        broker, ours.TOPIC, group, max_messages=count, invisible=HOUR, partitions=PARTITIONS
    )


def _jdbc(spark: SparkSession, url: str, count: int, columns: str, _pair: int) -> float:
    return rate(count, lambda: read_all(jdbc_read(spark, url, columns)))


def _measured(bench: Bench, spark: SparkSession, count: int, body_bytes: int, size: str) -> Iterator[Row]:
    with ExitStack() as stack:
        ours_dsn = stack.enter_context(bench.server.duewheel())
        plain_dsn = stack.enter_context(bench.server.empty())
        at = ours.now() - 2 * HOUR
        ours.create_topic(ours_dsn)
        ours.fill(ours_dsn, count, start=at, within=HOUR, at=at, body_bytes=body_bytes, with_key=True)
        copy_over(ours_dsn, plain_dsn)
        for dsn in (ours_dsn, plain_dsn):
            settle(dsn)
        url = jdbc_url(plain_dsn)

        def row(
            name: str, what: str, side: Callable[[int], float], columns: str, goal: float | None = None
        ) -> Row:
            return Row(
                f"{name}-{size}",
                f"Spark read of {thousands(count)} {what}",
                "messages/s",
                *interleave(
                    side, partial(_jdbc, spark, url, count, columns), pairs=bench.pairs, warm_up=WARM_UP
                ),
                f"Spark's JDBC source on the same rows, {PARTITIONS} parts",
                [] if goal is None else [Goal(goal, "at least")],
                notes=[memory(spark)],
            )

        leasing = partial(_leasing, spark, ours_dsn, count)
        messages = f"messages of {thousands(body_bytes)} bytes"
        yield row(
            "spark-read", f"leased {messages}, all columns", partial(_leased, spark, ours_dsn, count), "*"
        )
        yield row(
            "spark-read-leasing",
            f"{messages}, all columns, leasing them included",
            partial(leasing, "leasing", None),
            "*",
            1.0,
        )
        yield row(
            "spark-read-key",
            f"{messages}, the key only, leasing them included",
            partial(leasing, "key", ["key"]),
            "key",
            0.9,
        )


def spark_read(bench: Bench) -> Iterator[Row]:
    """Messages per second into a DataFrame."""
    with session() as spark:
        yield from _measured(bench, spark, bench.size(1_000_000, 100_000), 100, "small")
        yield from _measured(bench, spark, bench.size(100_000, 10_000), 10_000, "large")


def spark_first_row(bench: Bench) -> Iterator[Row]:
    """Seconds from the call until ten messages, or the first of them, are there, in a warm session.

    A read that ends early, as `first()` does, costs its Python worker: the next read waits for a new one, and
    that imports pyarrow.
    """
    with session() as spark, bench.server.duewheel() as dsn:
        ours.create_topic(dsn)
        at = ours.now() - 2 * HOUR
        ours.fill(dsn, 10, start=at, within=HOUR, at=at)

        def read(what: str, take: Callable[[DataFrame], object], pair: int) -> float:
            with Broker(dsn) as broker:
                return seconds(lambda: take(_taken(broker, 10, _group(what, pair)).dataframe(spark)))

        for name, text, take, goals in (
            ("all", "ten messages, leased and read", DataFrame.collect, [Goal(0.4, "at most", "ours")]),
            (
                "first",
                "the first of ten messages by `first()`",
                DataFrame.first,
                [Goal(0.5, "at most", "ours")],
            ),
        ):
            for warm_up in range(-WARM_UP, 0):
                read(name, take, warm_up)
            yield Row(
                f"spark-{name}-of-ten",
                f"{text}, in a warm session",
                "s",
                [read(name, take, pair) for pair in range(bench.pairs)],
                goals=goals,
            )


SUBJECTS = [
    Subject("spark-read", "Spark reads of small and large messages against JDBC", spark_read, missing),
    Subject("spark-first-row", "Spark's first rows: ten messages", spark_first_row, missing),
]
