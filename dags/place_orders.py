"""Place orders, each with a timeout: a message that is delivered when the time to pay has passed.

The orders and their messages are written in one transaction: there is never an order without its timeout, nor
a timeout without its order. The order's number is the message's key, so the program that takes the payment
can recall the timeout without knowing its message id.
"""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta
from typing import Any

import psycopg2
from airflow.sdk import Param, dag, task

from duewheel.dags.shop import TOPIC, statement
from duewheel.hooks.broker import DueWheelHook
from duewheel.operators.topic import CreateTopicOperator


@dag(
    schedule=None,
    tags=["duewheel", "example"],
    doc_md=__doc__,
    params={
        "orders": Param(2_000, type="integer", minimum=1, description="How many orders to place."),
        "timeout_seconds": Param(
            1_800, type="number", minimum=1, description="Time to pay of the first order."
        ),
        "spread_seconds": Param(
            0, type="number", minimum=0, description="The last order has this much longer."
        ),
    },
)
def place_orders() -> None:
    @task
    def place(**context: Any) -> int:
        params = context["params"]
        order_values = {
            "orders": params["orders"],
            "timeout": timedelta(seconds=params["timeout_seconds"]),
            "spread": timedelta(seconds=params["spread_seconds"]),
        }
        with DueWheelHook().get_conn() as broker, closing(psycopg2.connect(broker.dsn)) as connection:
            with (
                connection,
                connection.cursor() as cursor,
            ):  # one transaction: all or none
                cursor.execute(statement("create_orders"))
                cursor.execute(statement("place_orders"), order_values)
                timeouts = [
                    {"body": {"order": number}, "key": str(number), "deliver_at": pay_by}
                    for number, pay_by in cursor.fetchall()
                ]
                broker.send_many(TOPIC, timeouts, connection=connection)
        return len(timeouts)

    create_topic = CreateTopicOperator(task_id="create_topic", topic=TOPIC, message_type="DELAY")
    create_topic >> place()


place_orders()
