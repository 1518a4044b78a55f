"""Make waiting work in Airflow's own ways.

`python -m benchmarks.airflow_rows WAY COUNT FIRST_AT SECONDS FIRST_NUMBER`

A separate program in the environment of the measured Airflow. It writes exactly the rows that
`TriggerDagRunOperator(run_after=...)` and a deferred `DateTimeSensorAsync` leave, without running the task
that makes each of them.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta

from airflow.models.serialized_dag import SerializedDagModel
from airflow.models.taskinstance import TaskInstance
from airflow.models.trigger import Trigger
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState, TaskInstanceState
from airflow.utils.types import DagRunTriggeredByType, DagRunType
from sqlalchemy import select

TRIGGER = "airflow.providers.standard.triggers.temporal.DateTimeTrigger"
CHUNK = 250


def main(way: str, count: int, first_at: datetime, seconds: float, first_number: int) -> None:
    """Make `count` runs of the DAG `way`, from `order-<first_number>` on, due one after the other within
    `seconds`."""
    deferred = way == "date_time_trigger"
    for first in range(0, count, CHUNK):
        with create_session() as session:
            dag = SerializedDagModel.get_dag(way, session=session)
            if dag is None:
                raise LookupError(f"Airflow does not know the DAG {way}")
            for number in range(first, min(first + CHUNK, count)):
                due_at = first_at + timedelta(seconds=seconds * number / count)
                run_id = f"order-{first_number + number}"
                dag.create_dagrun(
                    run_id=run_id,
                    run_after=due_at,
                    start_date=datetime.now(UTC) if deferred else None,
                    run_type=DagRunType.MANUAL,
                    triggered_by=DagRunTriggeredByType.OPERATOR,
                    state=DagRunState.RUNNING if deferred else DagRunState.QUEUED,
                    session=session,
                )
                if deferred:
                    trigger = Trigger(classpath=TRIGGER, kwargs={"moment": due_at, "end_from_trigger": True})
                    session.add(trigger)
                    session.flush()
                    query = select(TaskInstance).filter_by(dag_id=way, run_id=run_id, task_id="wait")
                    task = session.scalars(query).one()
                    task.state = TaskInstanceState.DEFERRED
                    task.trigger_id = trigger.id
                    task.next_method = "execute_complete"
                    task.start_date = datetime.now(UTC)


if __name__ == "__main__":
    way, count, first_at, seconds, first_number = sys.argv[1:]
    main(way, int(count), datetime.fromisoformat(first_at), float(seconds), int(first_number))
