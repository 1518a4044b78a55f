"""The pipeline of the example: unpaid orders are cancelled when their timeouts come, on Spark's executors.

The same job by JDBC has no lease. It reads the due timeouts and the orders, joins them, and appends the
orders to cancel to a table, from which one statement updates the orders. If it dies in between, or runs
twice, it is not known which work was done. Both jobs commit all of their work.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from benchmarks import ours
from benchmarks.bench import Bench, Subject, rate
from benchmarks.measure import Goal, Row, interleave, thousands
from benchmarks.server import connect, settle
from benchmarks.spark_jdbc import DRIVER, FETCH_SIZE, PARTITIONS, jdbc_url, memory, missing, session
from duewheel.dags.shop import statement
from duewheel.spark.leased_batch import LeasedBatch
from duewheel.store import Broker

if TYPE_CHECKING:
    import pyarrow as pa

    from duewheel.store.database.connections import DriverConnection

HOUR = timedelta(hours=1)
#: One paid in ten.
ORDERS = """
INSERT INTO orders (amount, placed_at, pay_by, paid_at)
SELECT 9.99, now() - interval '2 hours', now() - interval '1 hour', CASE WHEN n %% 10 = 0 THEN now() END
  FROM generate_series(1, %(orders)s) n
"""
DUE = """
CREATE TABLE due AS SELECT n AS number, (n %% 4)::smallint AS queue FROM generate_series(1, %(due)s) n
"""
FRESH = "UPDATE orders SET timeout_came_at = NULL, cancelled_at = NULL WHERE timeout_came_at IS NOT NULL"
DONE = "SELECT count(*) FROM orders WHERE timeout_came_at IS NOT NULL"
APPLY = """
UPDATE orders o
SET timeout_came_at = coalesce(o.timeout_came_at, clock_timestamp()),
    cancelled_at = CASE WHEN o.paid_at IS NULL THEN coalesce(o.cancelled_at, clock_timestamp())
                        ELSE o.cancelled_at END
FROM came c WHERE c.number = o.number
"""


def _shop(dsn: str, orders: int, due: int) -> None:
    with closing(connect(dsn)) as connection, connection.cursor() as cursor:
        cursor.execute(statement("create_orders"))
        cursor.execute(ORDERS, {"orders": orders})
        cursor.execute(DUE, {"due": due})
    settle(dsn)


def _done(dsn: str, due: int) -> None:
    """Check that all orders were handled, and restore them for the next run."""
    with closing(connect(dsn)) as connection, connection.cursor() as cursor:
        cursor.execute(DONE)
        done = cursor.fetchone()
        if done != (due,):
            raise AssertionError(f"{done} of {due} orders were handled")
        cursor.execute(FRESH)
        cursor.execute("VACUUM ANALYZE orders")


def _ours(spark: SparkSession, dsn: str, due: int, pair: int) -> float:
    cancel_orders = statement("cancel_orders")

    def cancel(connection: DriverConnection, batches: Iterator[pa.RecordBatch]) -> None:
        with connection.cursor() as cursor:
            for messages in batches:
                cursor.execute(cancel_orders, {"due": [int(key) for key in messages["key"].to_pylist()]})

    def work() -> None:
        with Broker(dsn) as broker:
            batch = LeasedBatch.take(
                broker, ours.TOPIC, f"g{pair + 9}", max_messages=due, invisible=HOUR, partitions=PARTITIONS
            )
            with batch.kept_alive():
                batch.foreach_partition(spark, cancel, columns=["key"])

    reading = rate(due, work)
    _done(dsn, due)
    return reading


def _jdbc(spark: SparkSession, dsn: str, url: str, due: int, orders: int, _pair: int) -> float:
    properties = {
        "driver": DRIVER,
        "fetchsize": FETCH_SIZE,
        "batchsize": FETCH_SIZE,
        "reWriteBatchedInserts": "true",
    }

    def work() -> None:
        came = spark.read.jdbc(
            url, "due", predicates=[f"queue = {n}" for n in range(PARTITIONS)], properties=properties
        )
        shop = spark.read.jdbc(
            url, "orders", "number", 1, orders + 1, PARTITIONS, properties=properties
        ).select("number")
        came.join(shop, "number").select("number").write.jdbc(
            url, "came", mode="overwrite", properties=properties
        )
        with closing(connect(dsn)) as connection, connection.cursor() as cursor:
            cursor.execute(APPLY)

    reading = rate(due, work)
    _done(dsn, due)
    return reading


def spark_orders(bench: Bench) -> Iterator[Row]:
    """Timeouts handled per second."""
    orders, due = bench.size(1_000_000, 100_000), bench.size(500_000, 50_000)
    with ExitStack() as stack:
        spark = stack.enter_context(session())
        ours_dsn = stack.enter_context(bench.server.duewheel())
        plain_dsn = stack.enter_context(bench.server.empty())
        at = ours.now() - 2 * HOUR
        ours.create_topic(ours_dsn)
        ours.fill(ours_dsn, due, start=at, within=HOUR, at=at, with_key=True)
        for dsn in (ours_dsn, plain_dsn):
            _shop(dsn, orders, due)
        yield Row(
            "spark-orders",
            f"{thousands(due)} timeouts of {thousands(orders)} orders handled on executors, leased and acked",
            "orders/s",
            *interleave(
                partial(_ours, spark, ours_dsn, due),
                partial(_jdbc, spark, plain_dsn, jdbc_url(plain_dsn), due, orders),
                pairs=bench.pairs,
                warm_up=1,
            ),
            "the same by JDBC reads and writes, without leases",
            [Goal(1.0, "at least")],
            notes=[memory(spark)],
        )


SUBJECTS = [
    Subject("spark-orders", "the example's pipeline against JDBC reads and writes", spark_orders, missing)
]
