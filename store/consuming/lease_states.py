"""The state of a lease, as returned by an answer that skips leases that were answered already.

Parts of a batch are answered one by one, by tasks that may run twice and by other members of the group. So a
call that extends or gives back the whole batch answers only the leases that are held. The broker reads the
state and answers in one step, under the lease's lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from duewheel.store.values.errors import LeaseLost
from duewheel.store.values.leases import Lease
from duewheel.store.values.numbers import counted

if TYPE_CHECKING:
    from duewheel.store.database.connections import DriverConnection

_STATES = """
select s.state, s.acked, s.given_back, s.reason
from duewheel.lease_states(%s, %s::integer[], %s::integer[], %s::bigint[], %s::bigint[], %s) s
"""

HELD = "held"
ACKED = "acked"
OPEN = "open"
FAILED = "failed"
RETURNED = "returned"
GIVEN_BACK = (FAILED, RETURNED)
LOST = {
    "over": "ended unanswered",
    "expired": "ended unanswered, and its messages were delivered again",
    "rewound": "ended as its group was rewound",
    "unknown": "is unknown to the broker",
}
"""States of a lease whose messages another consumer may have by now, each with its wording in an error."""


@dataclass(frozen=True)
class LeaseState:
    """A lease and its state.

    Attributes:
        lease: the lease.
        state: ``held``, ``acked``, ``failed``, ``returned``, ``open`` while a transaction has it, or one of
            :data:`LOST`.
    """

    lease: Lease
    state: str


@dataclass(frozen=True)
class CountedState(LeaseState):
    """A lease, its state, and how it was answered.

    Attributes:
        acked: how many of its messages were acked.
        given_back: how many were given back one by one.
        reason: the reason of the answer to all messages, or to all that were left.
    """

    acked: int
    given_back: int
    reason: str | None


def lease_states(
    connection: DriverConnection, leases: Sequence[Lease], now: datetime | None = None
) -> list[CountedState]:
    """The states of leases of one group, in the order of the leases; answers nothing."""
    # Imported here because DAG files import this module and reach no database.
    from duewheel.store.database.connections import fetch

    if not leases:
        return []
    found = fetch(connection, _STATES, (*handles_of(leases), now))
    return [CountedState(lease, *row) for lease, row in zip(leases, found, strict=True)]


def handles_of(leases: Sequence[Lease]) -> tuple[Any, ...]:
    """The parameters that name leases of one group: the group, and an array for each part of a handle."""
    return (
        leases[0].group_id,
        [lease.topic_id for lease in leases],
        [lease.queue for lease in leases],
        [lease.n for lease in leases],
        [lease.token for lease in leases],
    )


def lost_error(states: Iterable[LeaseState]) -> LeaseLost | None:
    """The error to raise when one of the leases was lost, or None."""
    lost = [state for state in states if state.state in LOST]
    if not lost:
        return None
    first = lost[0]
    messages = sum(state.lease.count for state in lost)
    return LeaseLost(
        f"{counted(len(lost), 'lease')} lost, with {counted(messages, 'message')} that others may have: "
        f"lease {first.lease.n} on queue {first.lease.queue} of topic number {first.lease.topic_id} "
        f"{LOST[first.state]}. Take a longer invisible duration, or keep the leases alive"
    )


def raise_if_lost(states: Iterable[LeaseState]) -> None:
    """Do nothing unless one of the leases was lost.

    Raises:
        LeaseLost: it was; the message names one.
    """
    lost = lost_error(states)
    if lost is not None:
        raise lost


def given_back_error(states: Iterable[LeaseState]) -> LeaseLost | None:
    """The error to raise when messages were given back that should still be held, or None."""
    given_back = [state for state in states if state.state in GIVEN_BACK]
    if not given_back:
        return None
    return LeaseLost(
        f"{sum(state.lease.count for state in given_back)} of the messages were given back (nacked), and "
        "are delivered again: take a new batch"
    )
