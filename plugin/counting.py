"""The routes that count all rows of a list that has pages, for users who may see.

Each counts for a quarter of a second; the result shows whether there are more.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Query
from pydantic import AwareDatetime

from duewheel.plugin import models
from duewheel.plugin.brokers import brokers
from duewheel.plugin.rights import Seeing
from duewheel.plugin.seeing import OptionalText, WhichDeadLetters
from duewheel.store import Broker
from duewheel.store.operations import overview, statistics
from duewheel.store.operations.dead_letters import redrive_portions
from duewheel.store.operations.recalling import recall_portion
from duewheel.store.values.messages import deliver_at_of

router = APIRouter(prefix="/api/brokers/{connection_id}")

_LONGEST_SECONDS: Final = 0.25
_END: Final = datetime.max.replace(tzinfo=UTC)


@router.get("/messages/count")
def count_messages(
    connection_id: str,
    _: Seeing,
    topic: Annotated[str, Query(min_length=1, max_length=255)],
    key_prefix: OptionalText = None,
    tag: OptionalText = None,
    due_from: AwareDatetime | None = None,
    due_until: AwareDatetime | None = None,
) -> models.Count:
    """How many messages wait on a topic and meet the criteria."""
    with brokers.lend(connection_id, "numbers") as broker:
        criteria = {"key_prefix": key_prefix, "tag": tag, "due_until": due_until}
        return _sum(_waiting(broker, topic, due_from or first_waiting(broker, topic), criteria))


@router.get("/dead-letters/count")
def count_dead_letters(connection_id: str, _: Seeing, which: WhichDeadLetters) -> models.DeadLetterCount:
    """How many open dead letters of a group meet the criteria."""
    with brokers.lend(connection_id, "numbers") as broker:
        # Before the count: an action on letters that died by then reaches no more than was counted.
        now_at = overview.now(broker)
        portions = redrive_portions(
            broker,
            which.group,
            which.topic,
            message_ids=None,
            tag=None,
            key_prefix=which.key_prefix,
            reason_contains=which.reason_contains,
            reason_lacks=which.reason_lacks,
            dead_from=which.dead_from,
            dead_until=which.dead_until,
            max_messages=None,
            per_second=None,
            dry_run=True,
        )
        counted = _sum(part.matched for part, _ in portions)
    return models.DeadLetterCount(messages=counted.messages, exact=counted.exact, now_at=now_at)


@router.get("/groups/rewind/count")
def count_rewound(
    connection_id: str,
    _: Seeing,
    group: Annotated[str, Query(min_length=1, max_length=255)],
    topic: Annotated[str, Query(min_length=1, max_length=255)],
    to: AwareDatetime | Literal["earliest", "latest"],
) -> models.Count:
    """How many messages a rewind of a group would deliver again."""
    with brokers.lend(connection_id, "numbers") as broker:
        messages, exact = statistics.count_rewound(broker, group, topic, to)
    return models.Count(messages=messages, exact=exact)


def first_waiting(broker: Broker, topic: str) -> datetime | None:
    """The first instant at which messages wait, because counting released messages from the beginning would
    take long."""
    page = broker.list_messages(topic, max_messages=1)
    if page.messages:
        return page.messages[0].deliver_at
    # All messages examined are recalled, or were moved away from there.
    return None if page.next is None else deliver_at_of(page.next)


def _waiting(
    broker: Broker, topic: str, due_from: datetime | None, criteria: dict[str, Any]
) -> Iterator[int]:
    if due_from is not None and due_from >= (criteria["due_until"] or _END):
        return
    after: str | None = None
    while True:
        part, after = recall_portion(broker, topic, due_from=due_from, dry_run=True, after=after, **criteria)
        yield part.matched - part.already_released
        if after is None:
            return


def _sum(portions: Iterator[int]) -> models.Count:
    ends_at = time.monotonic() + _LONGEST_SECONDS
    messages = 0
    for portion in portions:
        messages += portion
        if time.monotonic() > ends_at:
            # The portion may have been the last one.
            return models.Count(messages=messages, exact=next(portions, None) is None)
    return models.Count(messages=messages, exact=True)
