"""Releasing without a wheel: consumers tick first, in a call of their own, and then receive.

A tick is a transaction of its own, so no transaction that stays open keeps others from ticking. The
procedures commit each tick by themselves, and also give back what was not answered in time. Where a wheel
turns, all this is its work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from duewheel.store.database.connections import Database

#: Takes the numbers of the group and the topic, and the instant that counts as now or None.
TICK_GROUP: Final = "call duewheel.tick_group(%s, %s, %s)"
#: Takes the names of topics and of their groups, and the instant.
TICK_GROUPS: Final = "call duewheel.tick_groups(%s::text[], %s::text[], %s)"


def tick_group(database: Database, group_id: int, topic_id: int) -> None:
    """Release what is due for one group, where no wheel has just done so."""
    database.rows(TICK_GROUP, (group_id, topic_id, database.now()))


def tick_groups(database: Database, topics: Sequence[str], groups: Sequence[str]) -> None:
    """Release what is due for pairs of a topic and a group; pairs without a subscription are passed over."""
    database.rows(TICK_GROUPS, (list(topics), list(groups), database.now()))
