"""Report each morning how many orders have run out of time: a DAG with a timetable and a sensor.

The sensor holds no worker while it waits: the wheel in the triggerer wakes it as soon as one timeout is due.
The sensor leases nothing; the task after it receives the messages under a lease. On a day without timeouts
the run is skipped after two hours.

The report has its own group and so gets every timeout, also the timeouts that `cancel_unpaid_orders`
handles. A new group begins with the oldest stored timeout. The DAG is paused until you choose it.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import TYPE_CHECKING

from airflow.sdk import CronTriggerTimetable, dag, task

from duewheel.dags.shop import TOPIC
from duewheel.operators.due_messages import DueMessages
from duewheel.sensors.due_messages import DueMessagesSensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duewheel.store import Message

log = logging.getLogger(__name__)

GROUP = "report-timeouts"


@dag(
    schedule=CronTriggerTimetable("0 6 * * *", timezone="Europe/Berlin"),
    is_paused_upon_creation=True,
    tags=["duewheel", "example"],
    doc_md=__doc__,
)
def report_timeouts() -> None:
    wait = DueMessagesSensor(
        task_id="wait",
        topic=TOPIC,
        group=GROUP,
        deferrable=True,
        timeout=timedelta(hours=2),
        soft_fail=True,
    )

    @DueMessages(TOPIC, GROUP).task(max_messages=10_000)
    def count(messages: Sequence[Message]) -> int:
        return len(messages)

    @task
    def report(counts: list[int]) -> int:
        log.info("%d orders have run out of time since the last report", sum(counts))
        return sum(counts)

    counts = count()
    wait >> counts
    report(counts)


report_timeouts()
