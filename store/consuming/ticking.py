"""Releasing without a wheel: consumers tick first, in a separate call, and then receive.

Each tick is a separate transaction, so an open transaction keeps no other session from ticking. The
procedures commit each tick, and also revive leases that were not answered in time. If a wheel turns, it does
all this.
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
    """Release due messages for one group, unless a wheel has just done so."""
    database.rows(TICK_GROUP, (group_id, topic_id, database.now()))


def tick_groups(database: Database, topics: Sequence[str], groups: Sequence[str]) -> None:
    """Release due messages for pairs of a topic and a group; pairs without a subscription are skipped."""
    database.rows(TICK_GROUPS, (list(topics), list(groups), database.now()))
