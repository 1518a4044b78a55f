"""Doorbells: whether a consumer group has messages that are ready and not leased.

A doorbell follows from the present logs, never from memory, so a ring that got lost is repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from duewheel.store.consuming.ticking import tick_groups
from duewheel.store.database.connected import Connected
from duewheel.store.values.bodies import check_text
from duewheel.store.values.errors import InvalidArgument
from duewheel.store.values.instants import to_datetime

if TYPE_CHECKING:
    from duewheel.store.values.doorbells import Doorbell

_DOORBELLS = """
select place, ready, oldest_deliver_at, more, inflight, next_at, holders
from duewheel.group_doorbells(%s::text[], %s::text[], %s, %s)
"""


class Asked(NamedTuple):
    """A consumer group of a topic."""

    topic: str
    group: str


def query(asked: Sequence[Asked], now: datetime | None, within: timedelta | None = None) -> tuple[str, Any]:
    """The statement that asks for the doorbells of groups, and its parameters.

    Args:
        asked: the groups.
        now: the instant that counts as now, None for the database's clock.
        within: after this time no further group is polled; None polls all.
    """
    return _DOORBELLS, (
        [one.topic for one in asked],
        [one.group for one in asked],
        now,
        within,
    )


def doorbell_of(asked: Sequence[Asked], row: tuple[Any, ...]) -> Doorbell:
    """The doorbell in a row of the statement of :func:`query`."""
    from duewheel.store.values.doorbells import Doorbell

    place, ready, oldest, more, inflight, next_at, holders = row
    one = asked[place - 1]
    return Doorbell(
        one.topic,
        one.group,
        ready,
        None if oldest is None else to_datetime(oldest),
        None if next_at is None else to_datetime(next_at),
        inflight,
        tuple(sorted(holders)),
        more,
    )


class Doorbells(Connected):
    """Asking which groups have ready messages."""

    def doorbells(
        self,
        topics: Sequence[str],
        groups: Sequence[str],
        *,
        release: bool = True,
    ) -> list[Doorbell]:
        """The messages ready and not leased, for pairs of a topic and a group.

        Args:
            topics, groups: the pairs, as two sequences of the same length; pairs without a subscription are
                left out.
            release: whether to release due messages first; give False if a wheel does so.

        Raises:
            InvalidArgument: the sequences are not of the same length.
        """
        if len(topics) != len(groups):
            raise InvalidArgument(
                f"{len(topics)} topics and {len(groups)} groups were given: give pairs of both"
            )
        for name in (*topics, *groups):
            check_text(name, "a topic or group")
        if release:
            tick_groups(self._database, topics, groups)
        asked = [Asked(*one) for one in zip(topics, groups, strict=True)]
        rows = self._database.rows(*query(asked, self._database.now()))
        return [doorbell_of(asked, row) for row in rows]
