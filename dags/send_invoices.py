"""Send invoices: failed invoices are retried; the last failure raises an alert, and a redrive follows.

An invoice is due an hour after it was billed. If it cannot be sent, it holds up no other: it is retried after
1, 2, 4, 8 and 16 minutes, and then it is a dead letter, which is kept with its reason.

A failure that is retried raises no alert: its task is red, but its run is not. Only a dead letter fails the
run, and each further run as long as it is not redriven. So give `alert` the callback that pages you:
``on_failure_callback=send_smtp_notification(...)`` or another of Airflow's notifiers.

When the cause is repaired, `redrive_invoices` sends the dead letters to their group again, each once, however
often the DAG is started.
"""

from __future__ import annotations

import logging
from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING

import psycopg2
from airflow.sdk import Param, TriggerRule, dag, task
from airflow.sdk.exceptions import AirflowFailException

from duewheel.dags.shop import statement
from duewheel.hooks.broker import DueWheelHook
from duewheel.operators.due_messages import DueMessages
from duewheel.operators.redrive import RedriveDeadLettersOperator
from duewheel.operators.send import SendDelayMessageOperator
from duewheel.operators.topic import CreateTopicOperator
from duewheel.store import RetryPolicy

if TYPE_CHECKING:
    from duewheel.store import Message

log = logging.getLogger(__name__)

TOPIC = "invoices"
GROUP = "send-invoices"

CUSTOMER = Param("4711", type="string", minLength=1, description="The customer's number.")
REASON = Param("no address", type="string", description="Redrive dead letters whose reason contains this.")

due_invoices = DueMessages(TOPIC, GROUP)


@dag(schedule=None, params={"customer": CUSTOMER}, tags=["duewheel", "example"], doc_md=__doc__)
def bill_customer() -> None:
    create_topic = CreateTopicOperator(task_id="create_topic", topic=TOPIC)
    create_topic >> SendDelayMessageOperator(
        task_id="bill",
        topic=TOPIC,
        key="{{ params.customer }}",
        body={"amount": 10},
        delay=timedelta(hours=1),
    )


@dag(schedule=[due_invoices], tags=["duewheel", "example"], doc_md=__doc__)
def send_invoices() -> None:
    @due_invoices.task(
        one_by_one=True,
        retry=RetryPolicy.exponential(timedelta(minutes=1), longest=timedelta(hours=1), max_retries=5),
    )
    def send(message: Message) -> str:
        with closing(psycopg2.connect(DueWheelHook().resolve().dsn)) as connection, connection:
            with connection.cursor() as cursor:
                cursor.execute(statement("create_customers"))
                cursor.execute(statement("mail_of_customer"), {"number": message.key})
                found = cursor.fetchone()
        if found is None:
            raise LookupError(f"no address of customer {message.key}")
        log.info("Sending the invoice of customer %s to %s", message.key, found[0])
        return f"{message.key} to {found[0]}"

    @task(trigger_rule=TriggerRule.ALL_DONE)
    def alert() -> None:
        with DueWheelHook().get_conn() as broker:
            dead = broker.dead_letters(GROUP, topic=TOPIC, redriven=False)
        if dead:
            raise AirflowFailException(f"{len(dead)} invoices cannot be sent, the first: {dead[0].reason}")

    send() >> alert()


@dag(schedule=None, params={"reason": REASON}, tags=["duewheel", "example"], doc_md=__doc__)
def redrive_invoices() -> None:
    RedriveDeadLettersOperator(
        task_id="redrive", group=GROUP, topic=TOPIC, reason_contains="{{ params.reason }}", per_second=50
    )


bill_customer()
send_invoices()
redrive_invoices()
