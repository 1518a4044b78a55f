"""Cancel the orders whose time to pay has passed: started by the timing wheel, worked on by Spark.

When timeouts are due, the wheel in Airflow's triggerer releases them and rings the asset's doorbell, which
starts this DAG. The ring carries no messages. The task takes them under a lease, and Spark's executors read
them, look up their orders and cancel the unpaid ones. On each part of the batch, the cancellations and the
ack are one transaction: whatever fails or runs twice, no timeout is lost and none takes effect twice. The
task touches only the orders of its messages. No order is sent to the driver, so the driver's memory does not
grow with the shop.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from airflow.sdk import dag

from duewheel.dags.shop import GROUP, TOPIC, statement
from duewheel.operators.due_messages import DueMessages

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from psycopg2.extensions import connection as Connection  # noqa: N812 -- a class of a lowercase name

    from duewheel.spark import Batch

log = logging.getLogger(__name__)

due_timeouts = DueMessages(TOPIC, GROUP)


# The same Spark session handles timeouts that are due during the work.
@due_timeouts.spark_task(columns=["key"], drain=True)
def cancel_unpaid(batch: Batch) -> None:
    """Cancel the unpaid orders of the messages on the executors, each part with its ack."""
    cancel_orders = statement("cancel_orders")

    def cancel(connection: Connection, batches: Iterator[pa.RecordBatch]) -> None:
        with connection.cursor() as cursor:
            for messages in batches:
                cursor.execute(cancel_orders, {"due": [int(key) for key in messages["key"].to_pylist()]})

    begun_at = time.monotonic()
    done = batch.foreach_partition(cancel)
    seconds = time.monotonic() - begun_at
    log.info("Handled %d timeouts in %.1f s: %.0f orders per second", done, seconds, done / seconds)


@dag(schedule=[due_timeouts], max_active_runs=1, tags=["duewheel", "example"], doc_md=__doc__)
def cancel_unpaid_orders() -> None:
    cancel_unpaid()


cancel_unpaid_orders()
