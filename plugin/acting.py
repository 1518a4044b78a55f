"""The routes that change something: each takes the right to act, and leaves a line in Airflow's audit log.

The line is written before the act: who asked for what, with the filter or the ids, whatever comes of it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from airflow.api_fastapi.logging.decorators import action_logging
from fastapi import APIRouter, Depends

from duewheel.plugin import models
from duewheel.plugin.rights import Acting
from duewheel.plugin.seeing import brokers
from duewheel.store import AlreadyReleased, Broker, DueWheelError, UnknownMessage
from duewheel.store.dead_letters import Redriven
from duewheel.store.groups import Rewound
from duewheel.store.recalling import BulkRecall

router = APIRouter(prefix="/api/brokers/{connection_id}")


@router.post("/messages/recall", dependencies=[Depends(action_logging("duewheel.recall"))])
def recall(connection_id: str, asked: models.SomeMessages, _: Acting) -> models.Outcomes:
    """Take messages back, each with its own answer."""

    def one(broker: Broker, message_id: str) -> models.Outcome:
        return models.Outcome(message_id=message_id, outcome=str(broker.recall(message_id)))

    return _each(connection_id, asked, one)


@router.post("/messages/reschedule", dependencies=[Depends(action_logging("duewheel.reschedule"))])
def reschedule(connection_id: str, asked: models.NewInstant, _: Acting) -> models.Outcomes:
    """Move messages to another instant, each with its own answer."""
    delay = None if asked.delay_seconds is None else timedelta(seconds=asked.delay_seconds)

    def one(broker: Broker, message_id: str) -> models.Outcome:
        try:
            moved = broker.reschedule(message_id, delay=delay, deliver_at=asked.deliver_at)
        except AlreadyReleased:
            return models.Outcome(message_id=message_id, outcome="already_released")
        except UnknownMessage:
            return models.Outcome(message_id=message_id, outcome="not_found")
        return models.Outcome(
            message_id=message_id,
            outcome="rescheduled",
            new_message_id=moved.message_id,
            deliver_at=moved.deliver_at,
        )

    return _each(connection_id, asked, one)


@router.post("/messages/recall-matching", dependencies=[Depends(action_logging("duewheel.recall_matching"))])
def recall_matching(connection_id: str, asked: models.Matching, _: Acting) -> BulkRecall:
    """Take back everything that waits and meets the criteria, or count it."""
    criteria = asked.model_dump(include={"tag", "key_prefix", "due_from", "due_until"})
    everything = all(one is None for one in criteria.values())
    with brokers.lend(connection_id) as broker:
        return broker.recall_many(asked.topic, **criteria, everything=everything, dry_run=asked.dry_run)


@router.post("/dead-letters/redrive", dependencies=[Depends(action_logging("duewheel.redrive"))])
def redrive(connection_id: str, asked: models.Redrive, _: Acting) -> Redriven:
    """Send dead letters again, or count them; with a rate, the page asks again and again for so many."""
    with brokers.lend(connection_id) as broker:
        return broker.redrive(**asked.model_dump())


@router.post("/groups/rewind", dependencies=[Depends(action_logging("duewheel.rewind"))])
def rewind(connection_id: str, asked: models.Rewind, _: Acting) -> Rewound:
    """Let a group consume again what was released since an instant."""
    with brokers.lend(connection_id) as broker:
        return broker.rewind(asked.group, asked.topic, asked.to)


@router.post("/schedules/pause", dependencies=[Depends(action_logging("duewheel.pause_schedule"))])
def pause_schedule(connection_id: str, asked: models.ScheduleName, _: Acting) -> models.Done:
    """Let a schedule rest."""
    with brokers.lend(connection_id) as broker:
        broker.pause_schedule(asked.name)
    return models.Done()


@router.post("/schedules/resume", dependencies=[Depends(action_logging("duewheel.resume_schedule"))])
def resume_schedule(connection_id: str, asked: models.ScheduleName, _: Acting) -> models.Done:
    """Let a paused schedule go on."""
    with brokers.lend(connection_id) as broker:
        broker.resume_schedule(asked.name)
    return models.Done()


def _each(
    connection_id: str, asked: models.SomeMessages, act: Callable[[Broker, str], models.Outcome]
) -> models.Outcomes:
    """Act on each message; what is refused for one is its answer, and no matter for the others."""
    outcomes: list[models.Outcome] = []
    with brokers.lend(connection_id) as broker:
        for message_id in asked.message_ids:
            try:
                outcomes.append(act(broker, message_id))
            except DueWheelError as error:
                if not outcomes:
                    raise
                outcomes.append(models.Outcome(message_id=message_id, outcome="refused", detail=str(error)))
    return models.Outcomes(outcomes=outcomes)
