"""What could ring for a consumer group: whether something is ready for it and nobody has it.

A doorbell follows from what the logs say now, never from memory, so a ring that got lost repeats by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from duewheel.store.bodies import check_text
from duewheel.store.connections import Database
from duewheel.store.errors import InvalidArgument
from duewheel.store.instants import to_datetime

_DOORBELLS = """
select topic, consumer_group, ready, oldest_deliver_at, inflight, next_at
from duewheel.doorbells(%s::text[], %s::text[], %s)
"""


@dataclass(frozen=True, slots=True)
class Doorbell:
    """What a topic has for a group; instants in UTC.

    Attributes:
        topic: the topic's name.
        group: the group's name.
        ready: how many messages are ready and not leased, counted up to 10 000; some may have
            tags the group does not ask for.
        oldest_deliver_at: the instant of the oldest of these, None where there is none.
        next_at: when there could next be one, None where nothing is known for the next minute.
        inflight: whether messages of the group are being consumed.
    """

    topic: str
    group: str
    ready: int
    oldest_deliver_at: datetime | None
    next_at: datetime | None
    inflight: bool


def doorbells(database: Database, topics: Sequence[str], groups: Sequence[str]) -> list[Doorbell]:
    """Look at pairs of topic and group; see :meth:`duewheel.store.broker.Broker.doorbells`."""
    if len(topics) != len(groups):
        raise InvalidArgument(f"{len(topics)} topics and {len(groups)} groups were given: give pairs of both")
    for name in (*topics, *groups):
        check_text(name, "a topic or group")
    rows = database.rows(_DOORBELLS, (list(topics), list(groups), database.now()))
    return [
        Doorbell(
            topic,
            group,
            ready,
            None if oldest is None else to_datetime(oldest),
            None if next_at is None else to_datetime(next_at),
            inflight,
        )
        for topic, group, ready, oldest, inflight, next_at in rows
    ]
