"""Doorbells: whether a consumer group has messages that are ready and not leased.

A doorbell follows from the present logs, never from memory, so a ring that got lost repeats by itself.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from duewheel.store.database.connections import Database
from duewheel.store.values import tags as tag_expressions
from duewheel.store.values.bodies import check_text
from duewheel.store.values.errors import InvalidArgument
from duewheel.store.values.filters import to_jsonpath
from duewheel.store.values.instants import to_datetime

_DOORBELLS = """
select place, ready, oldest_deliver_at, inflight, next_at, holders
from duewheel.group_doorbells(%s::text[], %s::text[], %s::jsonb, %s::jsonpath[], %s)
"""


@dataclass(frozen=True, slots=True)
class Doorbell:
    """The ready messages of a topic for a group; instants in UTC.

    Attributes:
        topic: the topic's name.
        group: the group's name.
        ready: how many messages are ready and not leased, counted up to 10 000. Where tags or a filter were
            given, only the messages that they choose count; on a FIFO topic all count.
        oldest_deliver_at: the instant of the oldest of these, None where there is none.
        next_at: when a message could next become ready, None where none is known for the next minute.
        inflight: whether messages of the group are being consumed.
        holders: the names of the consumers that have them, in order.
        tags: the tag expression of the question.
        filter: the filter of the question.
    """

    topic: str
    group: str
    ready: int
    oldest_deliver_at: datetime | None
    next_at: datetime | None
    inflight: bool
    holders: tuple[str, ...] = ()
    tags: str = tag_expressions.EVERY
    filter: str | None = None


def doorbells(
    database: Database,
    topics: Sequence[str],
    groups: Sequence[str],
    tags: Sequence[str] | None = None,
    filters: Sequence[str | None] | None = None,
) -> list[Doorbell]:
    """Look at pairs of topic and group; see :meth:`duewheel.store.broker.Broker.doorbells`."""
    if len(topics) != len(groups):
        raise InvalidArgument(f"{len(topics)} topics and {len(groups)} groups were given: give pairs of both")
    for name in (*topics, *groups):
        check_text(name, "a topic or group")
    tags = [tag_expressions.EVERY] * len(topics) if tags is None else tags
    filters = [None] * len(topics) if filters is None else filters
    if not len(tags) == len(filters) == len(topics):
        raise InvalidArgument(
            f"{len(tags)} tag expressions and {len(filters)} filters were given for {len(topics)} topics: "
            "give one for each"
        )
    rows = database.rows(
        _DOORBELLS,
        (
            list(topics),
            list(groups),
            json.dumps([tag_expressions.parse(expression) for expression in tags]),
            [None if expression is None else to_jsonpath(expression) for expression in filters],
            database.now(),
        ),
    )
    return [
        Doorbell(
            topics[place - 1],
            groups[place - 1],
            ready,
            None if oldest is None else to_datetime(oldest),
            None if next_at is None else to_datetime(next_at),
            inflight,
            tuple(sorted(holders)),
            tags[place - 1],
            filters[place - 1],
        )
        for place, ready, oldest, inflight, next_at, holders in rows
    ]
