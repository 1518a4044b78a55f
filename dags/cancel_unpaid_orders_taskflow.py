"""Cancel the orders whose time to pay has passed, in plain TaskFlow.

The same job as `cancel_unpaid_orders`, without Spark and Java, for a shop so small that one worker can handle
all due orders. The cancellations and the ack of a batch are one transaction, so no timeout is lost and none
takes effect twice, whatever fails.

Both DAGs use one group, so if both are unpaused, each timeout is handled by one of them. This one is
paused until you choose it.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import psycopg2
from airflow.sdk import dag

from duewheel.dags.shop import GROUP, TOPIC, statement
from duewheel.hooks.broker import DueWheelHook
from duewheel.operators.due_messages import DueMessages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duewheel.store import Consumer, Message

due_timeouts = DueMessages(TOPIC, GROUP)


@dag(
    schedule=[due_timeouts],
    max_active_runs=1,
    is_paused_upon_creation=True,
    tags=["duewheel", "example"],
    doc_md=__doc__,
)
def cancel_unpaid_orders_taskflow() -> None:
    @due_timeouts.task(max_messages=1_000)
    def cancel_unpaid(messages: Sequence[Message], consumer: Consumer) -> int:
        with closing(psycopg2.connect(DueWheelHook().resolve().dsn)) as connection, connection:
            with connection.cursor() as cursor:
                due = [int(message.key) for message in messages if message.key is not None]
                cursor.execute(statement("cancel_orders"), {"due": due})
            consumer.ack(messages, connection=connection)
        return len(messages)

    cancel_unpaid()


cancel_unpaid_orders_taskflow()
