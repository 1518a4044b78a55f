"""Cancel the orders whose time to pay is over: started by the timing wheel, worked on by Spark.

When timeouts come due, the wheel in Airflow's triggerer releases them and rings the asset's doorbell, which
starts this DAG. The ring carries no messages. The task takes them under a lease, and Spark reads them,
joins them with the orders and picks the unpaid ones. The cancellation and the ack are one transaction:
whatever fails, no timeout is lost, and one that comes a second time finds its order as the first left it
(rules D19, X09 and X14).
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import psycopg2
from airflow.sdk import Asset, AssetWatcher, dag

from duewheel.dags.shop import GROUP, TOPIC, statement
from duewheel.hooks.broker import DueWheelHook
from duewheel.operators.spark import SparkConsumeMessagesOperator
from duewheel.triggers.timing_wheel import TimingWheelTrigger

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from duewheel.spark.leased_batch import LeasedBatch

due_timeouts = Asset(
    "due_order_timeouts",
    watchers=[AssetWatcher(name="timing_wheel", trigger=TimingWheelTrigger(topic=TOPIC, group=GROUP))],
)


def cancel_unpaid(spark: SparkSession, messages: DataFrame, batch: LeasedBatch) -> None:
    """Cancel the unpaid orders of the messages, and ack them in the same transaction."""
    with closing(psycopg2.connect(DueWheelHook().resolve().dsn)) as connection:
        with connection, connection.cursor() as cursor:
            cursor.execute(statement("read_orders"))
            orders = spark.createDataFrame(cursor.fetchall(), "number bigint, is_paid boolean")

        due = messages.selectExpr("cast(key as bigint) as number").join(orders, "number").collect()
        unpaid = [order.number for order in due if not order.is_paid]

        with connection, connection.cursor() as cursor:
            cursor.execute(
                statement("cancel_orders"), {"due": [order.number for order in due], "unpaid": unpaid}
            )
            batch.ack(connection)


@dag(schedule=[due_timeouts], max_active_runs=1, tags=["duewheel", "example"], doc_md=__doc__)
def cancel_unpaid_orders() -> None:
    SparkConsumeMessagesOperator(
        task_id="cancel_unpaid",
        topic=TOPIC,
        group=GROUP,
        python_callable=cancel_unpaid,
        drain=True,  # what comes due meanwhile is worked on by the same Spark session
        spark_conf={"spark.sql.shuffle.partitions": "2"},
    )


cancel_unpaid_orders()
