"""The runs that wait for an answer, and the answers that wait for a run.

Airflow's database has the task instances that wait, and their messages: each has a trigger. The broker has
the key of the message and the instant at which it times out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from airflow.api_fastapi.common.db.common import SessionDep
from airflow.models import Trigger
from airflow.models.taskinstance import TaskInstance
from fastapi import APIRouter
from sqlalchemy import select
from sqlalchemy.orm import Session

from duewheel.hooks.task_name import task_name
from duewheel.plugin import models
from duewheel.plugin.brokers import brokers
from duewheel.plugin.rights import Seeing, may_read_bodies
from duewheel.store.operations import overview

router = APIRouter(prefix="/api/brokers/{connection_id}")

_TRIGGER: Final = "duewheel.triggers.answer.AnswerTrigger"
#: So many waits of all brokers are read, the newest first.
_MOST_TRIGGERS: Final = 2_000
#: So many runs, and so many early answers, are listed.
_MOST: Final = 200


@router.get("/waiting-runs")
def list_waiting_runs(connection_id: str, _: Seeing, session: SessionDep) -> models.WaitingRuns:
    """The task instances that wait for an answer, the next to time out first."""
    brokers.require(connection_id)
    tasks: dict[str, str] = {}
    triggers = 0
    for arguments, task in _waits(session):
        triggers += 1
        if arguments["duewheel_conn_id"] == connection_id:
            tasks[arguments["message_id"]] = task
    # The broker may take long to answer; no transaction of Airflow's database waits for it.
    session.commit()
    with brokers.lend(connection_id) as broker:
        now_at = overview.now(broker)
        found = overview.still_waiting(broker, list(tasks))
    return models.WaitingRuns(
        now_at=now_at,
        runs=[
            models.WaitingRun(
                task=tasks[sent_id],
                topic=one.topic,
                key=one.key,
                message_id=one.message_id,
                born_at=one.born_at,
                deliver_at=one.deliver_at,
            )
            for sent_id, one in found[:_MOST]
        ],
        more=len(found) > _MOST or triggers == _MOST_TRIGGERS,
    )


@router.get("/early-answers")
def list_early_answers(connection_id: str, user: Seeing) -> models.EarlyAnswers:
    """The early answers that no run has taken yet, the next to be forgotten first."""
    may_read = may_read_bodies(user, connection_id)
    with brokers.lend(connection_id) as broker:
        now_at = overview.now(broker)
        found = broker.early_answers(_MOST + 1)
    return models.EarlyAnswers(
        now_at=now_at,
        answers=[
            models.EarlyAnswer(
                topic=one.topic, key=one.key, answer=one.body if may_read else None, until_at=one.until_at
            )
            for one in found[:_MOST]
        ],
        more=len(found) > _MOST,
        may_read=may_read,
    )


def _waits(session: Session) -> Iterator[tuple[dict[str, Any], str]]:
    """The arguments of each trigger that waits for an answer, and the name of its task instance."""
    asked = (
        select(Trigger, TaskInstance)
        .join(TaskInstance, TaskInstance.trigger_id == Trigger.id)
        .where(Trigger.classpath == _TRIGGER)
        .order_by(Trigger.id.desc())
        .limit(_MOST_TRIGGERS)
    )
    for trigger, one in session.execute(asked):
        yield trigger.kwargs, task_name(one.dag_id, one.run_id, one.task_id, one.map_index)
