"""One DAG run for each message: a returned parcel is inspected, in steps that people can follow in the UI.

A scheduler is not a message handler: it takes about a third of a second for each task, and keeps rows for
each run. So use one run for each message only for tens of messages an hour, and if people look at the runs.
Hand hundreds of messages to a task that handles them itself, as in `remind_customers`, and thousands to
Spark, as in `cancel_unpaid_orders`.

A run is named after its message, so a try that follows a lost one starts no second run. After the ack,
Airflow retries by the ``retries`` of its tasks. Failed work then leaves no dead letter, but a failed run.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import Param, dag, task

from duewheel.operators.due_messages import DueMessages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duewheel.store import Message

log = logging.getLogger(__name__)

TOPIC = "returns"

PARCEL = Param("0815", type="string", minLength=1, description="The parcel's number.")

due_returns = DueMessages(TOPIC, "inspect-returns")


@dag(schedule=[due_returns], tags=["duewheel", "example"], doc_md=__doc__)
def hand_out_returns() -> None:
    @due_returns.task(max_messages=1_000, drain=False, skip_if_empty=True)
    def each(messages: Sequence[Message]) -> list[dict[str, Any]]:
        return [
            {"trigger_run_id": f"message__{message.message_id}", "conf": {"parcel": message.key}}
            for message in messages
        ]

    TriggerDagRunOperator.partial(
        task_id="begin",
        trigger_dag_id="inspect_return",
        logical_date=None,
        skip_when_already_exists=True,
        retries=3,
    ).expand_kwargs(each())


@dag(schedule=None, params={"parcel": PARCEL}, tags=["duewheel", "example"], doc_md=__doc__)
def inspect_return() -> None:
    @task
    def inspect(**context: Any) -> str:
        parcel = context["params"]["parcel"]
        log.info("Inspecting parcel %s", parcel)
        return str(parcel)

    inspect()


hand_out_returns()
inspect_return()
