"""The plan of a read: its connection to the broker, the messages of each lease, and the task that reads them.

Only the process that plans a read imports this module. The executors get the finished plan.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from duewheel.spark.lease_partition import MESSAGES_WORTH_A_PARTITION, LeasePartition, LeaseToRead
from duewheel.spark.lease_states import handle_prefix, refusal
from duewheel.spark.statements import statement
from duewheel.store.consuming.lease_states import handles_of, lease_states
from duewheel.store.database import schema
from duewheel.store.database.connections import Database, fetch
from duewheel.store.values.errors import InvalidArgument

if TYPE_CHECKING:
    from duewheel.store.database.connections import DriverConnection
    from duewheel.store.values.leases import Lease

_PLAN_LEASES = statement("plan_leases")


@contextmanager
def planning(dsn: str) -> Iterator[DriverConnection]:
    """A separate autocommit connection, checked like a broker's.

    Importing a whole ``Broker`` would take a new process longer than the planning itself.
    """
    with closing(Database(dsn, on_first_connection=schema.verify)) as database, database.lend() as connection:
        yield connection


def plan_leases(
    connection: DriverConnection, leases: Sequence[Lease], *, with_answered: bool = False
) -> list[LeaseToRead]:
    """Ask the broker which messages of each lease to read: all, or only messages without a separate answer.

    Raises:
        LeaseLost: a lease has ended, or was given back: its messages may be with others.
        InvalidArgument: a lease names single messages.
    """
    leases = [lease for lease in leases if lease.count]
    if not leases:
        return []
    if any(lease.seqs is not None for lease in leases):
        raise InvalidArgument(
            "a DataFrame is read from whole leases: give batch.leases, not those of some messages"
        )
    group_id, *handles, _ = handles_of(leases)
    planned = fetch(connection, _PLAN_LEASES, (with_answered, group_id, *handles))
    lost = refusal(lease_states(connection, leases))
    if lost is not None:
        raise lost
    return [
        LeaseToRead(*lease.place, open_count, handle_prefix(lease), topic, tuple(answered))
        for lease, (topic, open_count, answered) in zip(leases, planned, strict=True)
        # All of a lease may have been rejected one by one.
        if open_count
    ]


def deal_out(leases: Sequence[LeaseToRead], partitions: int, min_partitions: int = 1) -> list[LeasePartition]:
    """Deal leases out to partitions of about equal size.

    Each gets leases that follow each other, because adjacent leases are read by one query.

    Args:
        leases: the leases to read; a lease is never split.
        partitions: how many partitions at most; fewer where there are fewer leases or few messages.
        min_partitions: how many however few messages each then has, where there are as many leases.

    Example::

        deal_out([lease_of_3000, lease_of_1000, lease_of_2000], 2)  # two partitions of 3000
    """
    total = sum(lease.count for lease in leases)
    worth = math.ceil(total / MESSAGES_WORTH_A_PARTITION)
    number = min(partitions, len(leases), max(1, min_partitions, worth))
    left = deque(leases)
    dealt = []
    for others in reversed(range(number)):
        share = total / (others + 1)
        part = [left.popleft()]
        size = part[0].count
        while len(left) > others and size + left[0].count / 2 <= share:
            size += left[0].count
            part.append(left.popleft())
        total -= size
        dealt.append(LeasePartition(tuple(part)))
    return dealt
