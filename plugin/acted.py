"""What users did, from Airflow's audit log.

Who acted on a message is for users who may read that log. That another user has just acted on the same topic
or group is for all users, because it explains numbers that have changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.common.db.common import SessionDep
from airflow.models import Log
from fastapi import APIRouter, Path, Query
from sqlalchemy import or_, select

from duewheel.plugin import models
from duewheel.plugin.brokers import brokers
from duewheel.plugin.rights import Seeing
from duewheel.plugin.seeing import OptionalText
from duewheel.store import UnknownMessage
from duewheel.store.values.stored_messages import HistoryEntry, StoredMessage

router = APIRouter(prefix="/api/brokers/{connection_id}")

#: The actions on messages, in words.
_ACTIONS: Final = {
    "duewheel.answer": "answer",
    "duewheel.recall": "recall",
    "duewheel.recall_matching": "recall",
    "duewheel.reschedule": "reschedule",
    "duewheel.reschedule_matching": "reschedule",
    "duewheel.release_lease": "release the lease",
    "duewheel.retry_now": "retry now",
    "duewheel.redrive": "redrive",
    "duewheel.discard": "discard",
    "duewheel.resend": "edit and send again",
}
#: So many lines of the log are read.
_MOST_LINES: Final = 1_000
#: An action by a filter names no messages. It concerns this message if one of its states began at about that
#: time; the clocks of the broker and of Airflow may differ by this much.
_ABOUT: Final = timedelta(seconds=10)


@router.get("/messages/{message_id}/actions")
def list_actions(
    connection_id: str,
    message_id: Annotated[str, Path(pattern="^[0-9a-f]{44}$")],
    user: Seeing,
    session: SessionDep,
) -> models.Actions:
    """The users who acted on a message from the page, the latest first."""
    manager = get_auth_manager()
    if not manager.is_authorized_dag(method="GET", access_entity=DagAccessEntity.AUDIT_LOG, user=user):
        return models.Actions(actions=[], may_read=False)
    with brokers.lend(connection_id) as broker:
        found = broker.find(message_id)
        if found is None:
            raise UnknownMessage("No message has this id, or its retention has ended.")
        history = broker.history(message_id)
    ids = _ids(message_id, found, history)
    lines = session.scalars(
        select(Log)
        .where(
            Log.event.in_(_ACTIONS),
            Log.dttm >= found.born_at - _ABOUT,
            or_(Log.extra.contains(found.topic), *(Log.extra.contains(one) for one in ids)),
        )
        .order_by(Log.id.desc())
        .limit(_MOST_LINES)
    ).all()
    return models.Actions(
        actions=[
            models.Action(
                at=line.dttm, user=line.owner_display_name or line.owner or "", action=_ACTIONS[line.event]
            )
            for line in reversed(lines)
            if line.dttm is not None and _is_on(line, connection_id, found, history, ids)
        ],
        may_read=True,
    )


@router.get("/recent-actions")
def list_recent_actions(
    connection_id: str,
    user: Seeing,
    session: SessionDep,
    within_seconds: Annotated[int, Query(ge=1, le=86_400)],
    group: OptionalText = None,
    topic: OptionalText = None,
) -> models.RecentActions:
    """What other users have just done with messages of a topic and of a group, the first at the top."""
    lines = session.scalars(
        select(Log)
        .where(
            Log.event.in_(_ACTIONS),
            Log.dttm >= datetime.now(UTC) - timedelta(seconds=within_seconds),
            Log.owner != user.get_name(),
        )
        .order_by(Log.id.desc())
        .limit(_MOST_LINES)
    ).all()
    return models.RecentActions(
        actions=[
            models.RecentAction(at=line.dttm, action=line.event.removeprefix("duewheel."))
            for line in reversed(lines)
            if line.dttm is not None and _may_concern(line, connection_id, group, topic)
        ]
    )


def _may_concern(line: Log, connection_id: str, group: str | None, topic: str | None) -> bool:
    """Whether an action may have been one on messages of a topic and of a group."""
    asked: Mapping[str, Any] = json.loads(line.extra or "{}")
    return (
        asked.get("connection_id") == connection_id
        and asked.get("group") == group
        and (topic is None or asked.get("topic") in (None, topic))
    )


def _ids(message_id: str, found: StoredMessage, history: Iterable[HistoryEntry]) -> frozenset[str]:
    """Every id that the message is known to have had."""
    moved_from = found.moved_from or message_id
    return frozenset({message_id, found.message_id, moved_from, *(entry.known_as for entry in history)})


def _is_on(
    line: Log,
    connection_id: str,
    found: StoredMessage,
    history: Iterable[HistoryEntry],
    ids: frozenset[str],
) -> bool:
    asked: Mapping[str, Any] = json.loads(line.extra or "{}")
    if asked.get("connection_id") != connection_id:
        return False
    named = asked.get("message_ids") or [asked.get("message_id")]
    if named != [None]:
        return not ids.isdisjoint(named)
    key_prefix = asked.get("key_prefix")
    return (
        asked.get("topic") in (None, found.topic)
        and asked.get("tag") in (None, found.tag)
        and (key_prefix is None or (found.key or "").startswith(key_prefix))
        and any(
            entry.at is not None
            and line.dttm is not None
            and abs(entry.at - line.dttm) <= _ABOUT
            and asked.get("group") in (None, entry.consumer_group)
            and entry.state in ("Deleted", "Moved", "Timing", "WaitingRetry", "Ready")
            for entry in history
        )
    )
