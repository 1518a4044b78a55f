"""Clean up every day at 5 in the morning, Berlin time.

Airflow's own timetable does this, too. A schedule of the broker is better if a program without Airflow needs
the same call, if schedules are created at run time without a new DAG file, or if a group is to retry failed
work. Each occurrence is sent once, however many wheels turn. ``misfire`` decides about occurrences that fall
into an outage.

Start `plan_clean_up` once. Adding the same schedule again changes nothing.
"""

from __future__ import annotations

import logging
from contextlib import closing
from typing import TYPE_CHECKING

import psycopg2
from airflow.sdk import dag, task

from duewheel.dags.shop import statement
from duewheel.hooks.broker import DueWheelHook
from duewheel.operators.due_messages import DueMessages
from duewheel.operators.topic import CreateTopicOperator

if TYPE_CHECKING:
    from duewheel.store import Message

log = logging.getLogger(__name__)

TOPIC = "chores"

due_chores = DueMessages(TOPIC, "clean-up-orders")


@dag(schedule=None, tags=["duewheel", "example"], doc_md=__doc__)
def plan_clean_up() -> None:
    @task
    def plan() -> None:
        with DueWheelHook().get_conn() as broker:
            broker.create_schedule(
                "clean-up-orders", TOPIC, {"keep_days": 30}, cron="0 5 * * *", timezone="Europe/Berlin"
            )

    CreateTopicOperator(task_id="create_topic", topic=TOPIC) >> plan()


@dag(schedule=[due_chores], max_active_runs=1, tags=["duewheel", "example"], doc_md=__doc__)
def clean_up_orders() -> None:
    @due_chores.task(one_by_one=True)
    def clean_up(message: Message) -> int:
        keep_days = message.value["keep_days"]
        with closing(psycopg2.connect(DueWheelHook().resolve().dsn)) as connection, connection:
            with connection.cursor() as cursor:
                cursor.execute(statement("create_orders"))
                cursor.execute(statement("clean_up_orders"), {"keep_days": keep_days})
                deleted = cursor.rowcount
        log.info("Deleted %d orders that were cancelled more than %d days ago", deleted, keep_days)
        return deleted

    clean_up()


plan_clean_up()
clean_up_orders()
