"""Messages into a Spark DataFrame, against Spark's own JDBC source on the same rows.

Both read in one local session with two cores and hand the rows to Spark's sink that throws them away, so that
only the read is measured. The JDBC source reads a plain table of the same rows, in as many parallel parts as
ours, with a large fetch size. Except in one line, ours takes the lease within the measured time.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from pyspark.sql import SparkSession

from benchmarks import ours
from benchmarks.bench import Bench, Subject, rate, seconds
from benchmarks.measure import Goal, Row, interleave, thousands
from benchmarks.server import settle
from benchmarks.spark_jdbc import (
    PARTITIONS,
    copy_over,
    filled,
    jdbc_read,
    jdbc_url,
    missing,
    read_all,
    session,
    taken,
)
from duewheel.store import Broker

#: Java's compilers and Spark's Python workers take some runs to settle.
WARM_UP = 3


def _group(name: str, pair: int) -> str:
    return f"{ours.GROUP}-{name}-{pair + WARM_UP}"


def _ours(
    spark: SparkSession,
    dsn: str,
    count: int,
    name: str,
    is_leased: bool,
    columns: list[str] | None,
    pair: int,
) -> float:
    """The read with the lease that it takes, or of messages that are leased before Spark begins."""
    with Broker(dsn) as broker:
        lease = partial(taken, broker, count, _group(name, pair))
        if is_leased:
            batch = lease()
            return rate(count, lambda: read_all(batch.on(spark, columns).messages))
        return rate(count, lambda: read_all(lease().on(spark, columns).messages))


def _jdbc(spark: SparkSession, url: str, count: int, columns: str, _pair: int) -> float:
    return rate(count, lambda: read_all(jdbc_read(spark, url, columns)))


#: Name, what is read, whether it is leased before, the columns, and the goal.
READS: tuple[tuple[str, str, bool, list[str] | None, float | None], ...] = (
    ("spark-read", "leased {}, all columns", True, None, None),
    ("spark-read-leasing", "{}, all columns, leasing them included", False, None, 1.0),
    ("spark-read-key", "{}, the key only, leasing them included", False, ["key"], 0.9),
)
SIZES = (("small", (1_000_000, 100_000), 100, READS), ("large", (100_000, 10_000), 10_000, READS[1:2]))


def spark_read(bench: Bench) -> Iterator[Row]:
    """Messages per second into a DataFrame."""
    with session() as spark:
        for size, counts, body_bytes, reads in SIZES:
            count = bench.size(*counts)
            with filled(bench, count, body_bytes) as ours_dsn, bench.server.empty() as plain_dsn:
                copy_over(ours_dsn, plain_dsn)
                for dsn in (ours_dsn, plain_dsn):
                    settle(dsn)
                url = jdbc_url(plain_dsn)
                for name, what, is_leased, columns, goal in reads:
                    what = what.format(f"messages of {thousands(body_bytes)} bytes")
                    yield Row(
                        f"{name}-{size}",
                        f"Spark read of {thousands(count)} {what}",
                        "messages/s",
                        *interleave(
                            partial(_ours, spark, ours_dsn, count, name, is_leased, columns),
                            partial(_jdbc, spark, url, count, "key" if columns else "*"),
                            pairs=bench.pairs,
                            warm_up=WARM_UP,
                        ),
                        f"Spark's JDBC source on the same rows, {PARTITIONS} parts",
                        [] if goal is None else [Goal(goal, "at least")],
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


SUBJECTS = [
    Subject("spark-read", "Spark reads of small and large messages against JDBC", spark_read, missing),
    Subject("spark-first-row", "Spark's first row of ten messages", spark_first_row, missing),
]
