"""The states of the leases of a batch, read without an answer, and the number of messages by them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from duewheel.spark.statements import statement
from duewheel.store.consuming.lease_states import (
    ACKED,
    GIVEN_BACK,
    LOST,
    LeaseState,
    given_back_error,
    lost_error,
)
from duewheel.store.database.connections import DriverConnection, fetch

if TYPE_CHECKING:
    from duewheel.store.values.errors import LeaseLost
    from duewheel.store.values.leases import Lease

_STATES = statement("lease_states")


@dataclass(frozen=True)
class CountedState(LeaseState):
    """A lease, its state, and how many of its messages were acked.

    Attributes:
        acked: that number.
    """

    acked: int


@dataclass(frozen=True)
class BatchOutcome:
    """How many messages of a batch were answered, and how.

    Attributes:
        acked: their work is done.
        given_back: nacked; they come again, or are dead letters.
        unanswered: still held.
        lost: their lease ended before they were answered; they come again.
    """

    acked: int = 0
    given_back: int = 0
    unanswered: int = 0
    lost: int = 0


def lease_states(
    connection: DriverConnection, leases: Sequence[Lease], now: datetime | None = None
) -> list[CountedState]:
    """The states of leases of one group, in the order of the leases."""
    if not leases:
        return []
    found = fetch(connection, _STATES, (*handles_of(leases), now))
    return [CountedState(lease, state, acked) for lease, (state, acked) in zip(leases, found, strict=True)]


def outcome_of(states: Iterable[CountedState]) -> BatchOutcome:
    """Count the messages of leases by the leases' states."""
    acked = given_back = unanswered = lost = 0
    for state in states:
        acked += state.acked
        rest = state.lease.count - state.acked
        if state.state == ACKED or state.state in GIVEN_BACK:
            given_back += rest
        elif state.state in LOST:
            lost += rest
        else:
            unanswered += rest
    return BatchOutcome(acked, given_back, unanswered, lost)


def refusal(states: Iterable[LeaseState]) -> LeaseLost | None:
    """The error to raise when the messages of one of the leases may be with others, or None.

    Acked messages may be read again, since no other consumer gets them.
    """
    states = list(states)
    return given_back_error(states) or lost_error(states)


def handle_prefix(lease: Lease) -> str:
    """The beginning of the receipt handles of a lease's messages."""
    return f"{lease.group_id}.{lease.topic_id}.{lease.queue}.{lease.n}.{lease.token}"


def handles_of(leases: Sequence[Lease]) -> tuple[Any, ...]:
    """The parameters that name leases of one group: the group, and an array for each part of a handle."""
    return (
        leases[0].group_id,
        [lease.topic_id for lease in leases],
        [lease.queue for lease in leases],
        [lease.n for lease in leases],
        [lease.token for lease in leases],
    )
