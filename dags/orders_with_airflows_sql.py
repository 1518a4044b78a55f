"""The main job with Airflow's own SQL parts: `SQLExecuteQueryOperator` and `PostgresHook`.

Each of the three DAGs has one transaction that either happens whole or not at all: an order and its timeout,
a payment and the recall, a cancellation and the ack. The connection `orders_db` of type `postgres` leads to
the database that has both the orders and the broker's schema. Its login may write the orders, and has the
roles `duewheel_producer` and `duewheel_consumer`.

A payment whose timeout is released at the same moment fails at its COMMIT. The task then tries again, and the
second answer is `already_released`.

The group is that of `cancel_unpaid_orders`, so each timeout is handled by one of the two. These DAGs are
paused until you choose them.
"""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING

from airflow.providers.common.sql.operators.sql import SQLExecuteQueryOperator
from airflow.providers.postgres.hooks.postgres import PostgresHook
from airflow.sdk import Param, dag

from duewheel.dags.shop import GROUP, TOPIC, statement
from duewheel.operators.due_messages import DueMessages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duewheel.store import Consumer, Message

ORDERS_DB = "orders_db"

due_timeouts = DueMessages(TOPIC, GROUP)


@dag(
    schedule=None,
    is_paused_upon_creation=True,
    params={"amount": Param(19.90, type="number", minimum=0, description="The amount to pay.")},
    tags=["duewheel", "example"],
    doc_md=__doc__,
)
def place_order_with_airflows_sql() -> None:
    SQLExecuteQueryOperator(
        task_id="place",
        conn_id=ORDERS_DB,
        sql=statement("place_order"),
        parameters={"amount": "{{ params.amount }}"},
    )


@dag(
    schedule=None,
    is_paused_upon_creation=True,
    params={"number": Param(1, type="integer", minimum=1, description="The order's number.")},
    tags=["duewheel", "example"],
    doc_md=__doc__,
)
def pay_order_with_airflows_sql() -> None:
    SQLExecuteQueryOperator(
        task_id="pay",
        conn_id=ORDERS_DB,
        # Without autocommit, the statements of one operator are one transaction.
        sql=[statement("pay_order"), statement("recall_timeout")],
        parameters={"number": "{{ params.number }}"},
        retries=3,
        retry_delay=timedelta(seconds=1),
    )


@dag(
    schedule=[due_timeouts],
    max_active_runs=1,
    is_paused_upon_creation=True,
    tags=["duewheel", "example"],
    doc_md=__doc__,
)
def cancel_orders_with_airflows_sql() -> None:
    @due_timeouts.task(max_messages=1_000)
    def cancel(messages: Sequence[Message], consumer: Consumer) -> int:
        with closing(PostgresHook(ORDERS_DB).get_conn()) as connection, connection:
            with connection.cursor() as cursor:
                due = [int(message.key) for message in messages if message.key is not None]
                cursor.execute(statement("cancel_orders"), {"due": due})
            consumer.ack(messages, connection=connection)
        return len(messages)

    cancel()


place_order_with_airflows_sql()
pay_order_with_airflows_sql()
cancel_orders_with_airflows_sql()
