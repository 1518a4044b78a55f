"""The routes that change something: each takes the right to act, and leaves a line in Airflow's audit log.

The line is written before the act, so it is there whatever the outcome. It names the user, the action, and
the filter or the ids. A dry run changes nothing, and leaves no line.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from functools import wraps
from itertools import islice
from typing import Any

import psycopg2
from airflow.api_fastapi.common.db.common import SessionDep
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.api_fastapi.logging.decorators import action_logging
from fastapi import APIRouter, Depends, Request
from fastapi.routing import APIRoute

from duewheel.plugin import models
from duewheel.plugin.brokers import BrokerBusy, brokers
from duewheel.plugin.counting import first_waiting
from duewheel.plugin.edited import EDITED_FROM, key_of_edited
from duewheel.plugin.problems import of_database, unavailable
from duewheel.plugin.rights import Acting
from duewheel.plugin.seeing import acted_on, pulse_of
from duewheel.store import AlreadyReleased, Broker, DueWheelError, InvalidArgument, NotAllowed, UnknownMessage
from duewheel.store.operations import overview
from duewheel.store.operations.dead_letters import redrive_portions
from duewheel.store.operations.recalling import recall_portion, reschedule_portion
from duewheel.store.operations.topics import find_topic
from duewheel.store.values.messages import MessageType, SendOutcome

log = logging.getLogger(__name__)

_END = datetime.max.replace(tzinfo=UTC)


def _logged(event: str) -> Any:
    """The dependency that writes the line of a route, unless the request is a dry run."""
    write = action_logging(event)

    async def written(request: Request, session: SessionDep, user: GetUserDep) -> None:
        try:
            asked = await request.json()
        except ValueError:
            # Not JSON: FastAPI refuses the request after this dependency.
            return
        if isinstance(asked, dict) and asked.get("dry_run") is True:
            return
        if isinstance(asked, dict) and not _PRIVATE.isdisjoint(asked):
            request = _Public(request, {name: asked[name] for name in asked.keys() - _PRIVATE})
        await write(request, session, user)

    return Depends(written)


#: Parts of a request that are as private as the body of a message, and are not logged.
_PRIVATE = frozenset({"body", "properties"})


class _Public(Request):
    """A request without its private parts."""

    def __init__(self, request: Request, asked: dict[str, Any]) -> None:
        super().__init__(request.scope)
        self._asked = asked

    async def body(self) -> bytes:
        return b"{}"

    async def json(self) -> dict[str, Any]:
        return self._asked


def _with_numbers(act: Callable[..., models.Acted]) -> Callable[..., models.Acted]:
    """An act whose answer has the new numbers, and after which no process gives older ones, unless it is a
    dry run."""

    @wraps(act)
    def acting(**given: Any) -> models.Acted:
        if getattr(given["asked"], "dry_run", False):
            return act(**given)
        connection_id = given["connection_id"]
        try:
            answer = act(**given)
        finally:
            acted_on(connection_id)
        if getattr(answer, "next", None) is None:
            answer.pulse = _pulse_after(connection_id)
        return answer

    return acting


def _pulse_after(connection_id: str) -> models.Pulse | None:
    try:
        return pulse_of(connection_id)
    except (BrokerBusy, DueWheelError, psycopg2.Error) as error:
        # The act has its outcome. The page asks for the numbers, and shows why it gets none.
        log.warning("The numbers after an act could not be read: %s", error)
        return None


class _ActingRoute(APIRoute):
    """The route of an act."""

    def __init__(self, path: str, endpoint: Callable[..., models.Acted], **settings: Any) -> None:
        super().__init__(path, _with_numbers(endpoint), **settings)


router = APIRouter(prefix="/api/brokers/{connection_id}", route_class=_ActingRoute)


@router.post("/messages/recall", dependencies=[_logged("duewheel.recall")])
def recall(connection_id: str, asked: models.SomeMessages, _: Acting) -> models.Outcomes:
    """Take messages back, each with its own answer."""

    def one(broker: Broker, message_id: str) -> models.Outcome:
        answer = broker.recall(message_id)
        return models.Outcome(
            message_id=message_id,
            outcome=str(answer.outcome),
            new_message_id=None if answer.message_id == message_id else answer.message_id,
        )

    return _each(connection_id, asked, one)


@router.post("/messages/reschedule", dependencies=[_logged("duewheel.reschedule")])
def reschedule(connection_id: str, asked: models.MoveSome, _: Acting) -> models.Outcomes:
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


@router.post("/messages/answer", dependencies=[_logged("duewheel.answer")])
def answer(connection_id: str, asked: models.Answer, user: Acting) -> models.Answered:
    """Answer the run that waits under the key of a message, with the user's name as the property ``by``.

    If the message was replaced meanwhile, as by a cleared task, the new wait gets the answer.
    """
    try:
        body = json.loads(asked.body)
    except ValueError as error:
        raise InvalidArgument(f"The answer is not JSON: {error}. Nothing was answered.") from error
    with brokers.lend(connection_id, "acts") as broker:
        found = broker.find(asked.message_id)
        if found is None or found.key is None:
            raise UnknownMessage("No run waits with this message: it has no key, or its retention has ended.")
        receipt = broker.answer_key(found.topic, found.key, body, properties={"by": user.get_name()})
    return models.Answered(
        message_id=asked.message_id,
        outcome=str(receipt.outcome),
        new_message_id=None if receipt.message_id == asked.message_id else receipt.message_id,
    )


@router.post("/early-answers/withdraw", dependencies=[_logged("duewheel.withdraw_early_answer")])
def withdraw_early_answer(connection_id: str, asked: models.EarlyAnswerName, _: Acting) -> models.Withdrawn:
    """Delete an answer that no run has taken yet."""
    with brokers.lend(connection_id, "acts") as broker:
        return models.Withdrawn(withdrawn=broker.withdraw_early_answer(asked.topic, asked.key))


@router.post("/messages/recall-matching", dependencies=[_logged("duewheel.recall_matching")])
def recall_matching(connection_id: str, asked: models.RecallMatching, _: Acting) -> models.RecalledPortion:
    """Recall the waiting messages that meet the criteria, or count them: one portion at a time, so that other
    requests get their turn."""
    criteria = asked.model_dump(include={"tag", "key_prefix", "due_until", "dry_run", "after"})
    with brokers.lend(connection_id, "acts") as broker:
        due_from = asked.due_from or first_waiting(broker, asked.topic)
        if due_from is not None and asked.due_from is None and due_from >= (asked.due_until or _END):
            return models.RecalledPortion.model_validate(
                {"matched": 0, "recalled": 0, "already_released": 0, "due_from": due_from, "next": None}
            )
        part, following = recall_portion(broker, asked.topic, due_from=due_from, **criteria)
    return models.RecalledPortion(
        matched=part.matched,
        recalled=part.recalled,
        already_released=part.already_released,
        due_from=due_from,
        next=following,
    )


@router.post("/messages/reschedule-matching", dependencies=[_logged("duewheel.reschedule_matching")])
def reschedule_matching(connection_id: str, asked: models.MoveMatching, _: Acting) -> models.MovedPortion:
    """Move the waiting messages that meet the criteria, or count them: one portion at a time, so that other
    requests get their turn."""
    criteria = asked.model_dump(include={"tag", "key_prefix", "due_from", "due_until", "dry_run", "after"})
    with brokers.lend(connection_id, "acts") as broker:
        deliver_at = asked.deliver_at or overview.now(broker) + timedelta(seconds=asked.delay_seconds or 0)
        matched, moved, following = reschedule_portion(broker, asked.topic, deliver_at=deliver_at, **criteria)
    return models.MovedPortion(matched=matched, moved=moved, deliver_at=deliver_at, next=following)


@router.post("/dead-letters/redrive", dependencies=[_logged("duewheel.redrive")])
def redrive(connection_id: str, asked: models.SomeDeadLetters, _: Acting) -> models.DeadLetterPortion:
    """Send dead letters again, one portion at a time, so that other requests get their turn; or count them
    all. With a rate, the page asks for small portions, and waits between them."""
    return _dead_letters(connection_id, asked, discard=False)


@router.post("/dead-letters/discard", dependencies=[_logged("duewheel.discard")])
def discard(connection_id: str, asked: models.SomeDeadLetters, _: Acting) -> models.DeadLetterPortion:
    """Discard dead letters, one portion at a time, like a redrive; or count them all."""
    return _dead_letters(connection_id, asked, discard=True)


@router.post("/dead-letters/resend", dependencies=[_logged("duewheel.resend")])
def resend(connection_id: str, asked: models.EditedDeadLetter, _: Acting) -> models.Sent:
    """Send a dead letter as a new message to its topic, edited, and discard it.

    A dead letter is sent only once in this way. A second request before it is discarded sends nothing.
    """
    with brokers.lend(connection_id, "acts") as broker:
        found = broker.find(asked.message_id)
        states = [one for one in broker.history(asked.message_id) if one.consumer_group == asked.group]
        if found is None or not states or states[-1].state != "DLQ":
            raise UnknownMessage(
                f"This message is no longer a dead letter of {asked.group}: it was sent again, discarded or "
                "dropped by retention. Nothing was sent."
            )
        topic = find_topic(broker, found.topic)
        sent = broker.send(
            found.topic,
            asked.body,
            delay=timedelta(0) if topic is not None and topic.message_type is MessageType.DELAY else None,
            key=found.key,
            tag=found.tag,
            properties={**asked.properties, EDITED_FROM: found.message_id},
            message_group=found.message_group,
            idempotency_key=key_of_edited(found.message_id, asked.group, states[-1].attempt),
        )
        broker.discard_dead_letters(asked.group, topic=found.topic, message_ids=[asked.message_id])
    return models.Sent(message_id=sent.message_id, is_new=sent.outcome is not SendOutcome.DUPLICATE)


@router.post("/retries/now", dependencies=[_logged("duewheel.retry_now")])
def retry_now(connection_id: str, asked: models.SomeRetries, _: Acting) -> models.Outcomes:
    """Make messages due now that wait for their next attempt."""
    with brokers.lend(connection_id, "acts") as broker:
        waited = frozenset(broker.retry_now(asked.group, asked.message_ids))
    return models.Outcomes(
        outcomes=[
            models.Outcome(message_id=one, outcome="due_now" if one in waited else "not_waiting")
            for one in asked.message_ids
        ]
    )


@router.post("/leases/release", dependencies=[_logged("duewheel.release_lease")])
def release_lease(connection_id: str, asked: models.LeaseName, _: Acting) -> models.Released:
    """End the lease of a consumer that hangs."""
    with brokers.lend(connection_id, "acts") as broker:
        return models.Released(messages=broker.release_lease(asked.lease_id, "by an operator"))


@router.post("/groups/rewind", dependencies=[_logged("duewheel.rewind")])
def rewind(connection_id: str, asked: models.Rewind, _: Acting) -> models.Rewound:
    """Set a group back, so that it receives again the messages released since an instant."""
    with brokers.lend(connection_id, "acts") as broker:
        return models.Rewound(**asdict(broker.rewind(asked.topic, asked.group, asked.to)))


@router.post("/groups/pause", dependencies=[_logged("duewheel.pause_group")])
def pause_group(connection_id: str, asked: models.GroupName, _: Acting) -> models.Done:
    """Let a group get nothing until it is resumed."""
    with brokers.lend(connection_id, "acts") as broker:
        broker.pause_group(asked.group, topic=asked.topic)
    return models.Done()


@router.post("/groups/resume", dependencies=[_logged("duewheel.resume_group")])
def resume_group(connection_id: str, asked: models.GroupName, _: Acting) -> models.Done:
    """Let a paused group continue."""
    with brokers.lend(connection_id, "acts") as broker:
        broker.resume_group(asked.group, topic=asked.topic)
    return models.Done()


@router.post("/groups/delete", dependencies=[_logged("duewheel.delete_group")])
def delete_group(connection_id: str, asked: models.GroupName, _: Acting) -> models.Done:
    """Delete what a group has on a topic."""
    with brokers.lend(connection_id, "acts") as broker:
        broker.delete_group(asked.group, topic=asked.topic)
    return models.Done()


@router.post("/schedules/pause", dependencies=[_logged("duewheel.pause_schedule")])
def pause_schedule(connection_id: str, asked: models.ScheduleName, _: Acting) -> models.Done:
    """Pause a schedule."""
    with brokers.lend(connection_id, "acts") as broker:
        broker.pause_schedule(asked.name)
    return models.Done()


@router.post("/schedules/resume", dependencies=[_logged("duewheel.resume_schedule")])
def resume_schedule(connection_id: str, asked: models.ScheduleName, _: Acting) -> models.Done:
    """Resume a paused schedule."""
    with brokers.lend(connection_id, "acts") as broker:
        broker.resume_schedule(asked.name)
    return models.Done()


def _dead_letters(
    connection_id: str, asked: models.SomeDeadLetters, *, discard: bool
) -> models.DeadLetterPortion:
    with brokers.lend(connection_id, "acts") as broker:
        portions = redrive_portions(broker, per_second=None, discard=discard, **asked.model_dump())
        parts = list(portions if asked.dry_run else islice(portions, 1))
    return models.DeadLetterPortion(
        matched=sum(part.matched for part, _ in parts),
        done=sum(part.redriven for part, _ in parts),
        next=parts[-1][1],
    )


def _each(
    connection_id: str, asked: models.SomeMessages, act: Callable[[Broker, str], models.Outcome]
) -> models.Outcomes:
    """Act on each message. A refusal is the answer for its message and does not affect the others.

    If the broker fails partway, the answers given before are still returned. The outcome of the message in
    progress is unknown, and the messages after it are not tried.
    """
    outcomes: list[models.Outcome] = []
    with brokers.lend(connection_id, "acts") as broker:
        for message_id in asked.message_ids:
            try:
                outcomes.append(act(broker, message_id))
            except (DueWheelError, psycopg2.Error) as error:
                problem = of_database(error) if isinstance(error, psycopg2.Error) else unavailable(error)
                if not outcomes and (problem is not None or isinstance(error, NotAllowed)):
                    raise
                if problem is None:
                    outcomes.append(
                        models.Outcome(message_id=message_id, outcome="refused", detail=str(error))
                    )
                    continue
                outcomes.append(
                    models.Outcome(message_id=message_id, outcome="unknown", detail=problem.detail)
                )
                break
    outcomes += [
        models.Outcome(message_id=one, outcome="not_tried") for one in asked.message_ids[len(outcomes) :]
    ]
    return models.Outcomes(outcomes=outcomes)
