"""Pay every second order, and recall its timeout by the order's number.

Every fifth payer forgets the recall. That does no harm: the timeout is then delivered, finds the order paid,
and leaves it alone. So a recall saves work, but a paid order is safe without it. The recall's answer is
reliable: after `recalled` the timeout is never delivered, after `already_released` it may be on its way.
"""

from __future__ import annotations

from collections import Counter
from contextlib import closing

import psycopg2
from airflow.sdk import dag, task

from duewheel.dags.shop import TOPIC, statement
from duewheel.hooks.broker import DueWheelHook


@dag(schedule=None, tags=["duewheel", "example"], doc_md=__doc__)
def pay_orders() -> None:
    @task
    def pay() -> dict[str, int]:
        with DueWheelHook().get_conn() as broker, closing(psycopg2.connect(broker.dsn)) as connection:
            with connection, connection.cursor() as cursor:
                cursor.execute(statement("pay_orders"))
                paid = [number for (number,) in cursor.fetchall()]
            remembered = [number for number in paid if number % 10 != 0]
            outcomes = Counter(broker.recall_key(TOPIC, str(number)).outcome.value for number in remembered)
        return {"paid": len(paid), **outcomes}

    pay()


pay_orders()
