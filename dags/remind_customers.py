"""Remind a customer after an hour, a day and three days, unless the customer acts.

All three reminders are sent at once, under the customer's key. When the customer has acted, one recall by
that key takes back the reminders that still wait; no message id is needed. So no program has to search every
minute for customers to remind, and a reminder that was recalled in time is never delivered.

Each reminder is handled separately: if it cannot be sent, its group's policy retries it, and it holds up no
other. A recall can be a moment too late, so a handler that must not remind in vain checks whether the
customer has acted.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import Param, dag, task

from duewheel.operators.due_messages import DueMessages
from duewheel.operators.recall import RecallMessageOperator
from duewheel.operators.send_many import SendDelayMessagesOperator
from duewheel.operators.topic import CreateTopicOperator
from duewheel.store import RetryPolicy

if TYPE_CHECKING:
    from duewheel.store import Message

log = logging.getLogger(__name__)

TOPIC = "reminders"
LADDER_HOURS = (1, 24, 72)

CUSTOMER = {"customer": Param("4711", type="string", minLength=1, description="The customer's number.")}

due_reminders = DueMessages(TOPIC, "remind-customers")


@dag(schedule=None, params=CUSTOMER, tags=["duewheel", "example"], doc_md=__doc__)
def begin_reminders() -> None:
    @task
    def ladder(**context: Any) -> list[dict[str, Any]]:
        customer = context["params"]["customer"]
        return [
            {"key": customer, "body": {"customer": customer, "after_hours": hours}, "delay": f"PT{hours}H"}
            for hours in LADDER_HOURS
        ]

    create_topic = CreateTopicOperator(task_id="create_topic", topic=TOPIC, max_delay=timedelta(days=4))
    create_topic >> SendDelayMessagesOperator(task_id="send", topic=TOPIC, messages=ladder())


@dag(schedule=[due_reminders], tags=["duewheel", "example"], doc_md=__doc__)
def remind_customers() -> None:
    @due_reminders.task(
        one_by_one=True,
        retry=RetryPolicy.exponential(timedelta(minutes=1), longest=timedelta(hours=1), max_retries=8),
    )
    def remind(message: Message) -> str:
        reminder = message.value
        log.info("Reminding customer %s after %s h", reminder["customer"], reminder["after_hours"])
        return f"{reminder['customer']} after {reminder['after_hours']} h"

    remind()


@dag(schedule=None, params=CUSTOMER, tags=["duewheel", "example"], doc_md=__doc__)
def end_reminders() -> None:
    RecallMessageOperator(task_id="recall", topic=TOPIC, key="{{ params.customer }}")


begin_reminders()
remind_customers()
end_reminders()
