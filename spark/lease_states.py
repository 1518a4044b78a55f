"""The state of each lease of a batch, and answers that pass over leases answered already.

Parts of a batch are answered one by one, by tasks that may run twice and by other members of the group. So a
call that extends or gives back the whole batch first has to learn which leases are unanswered. The broker
looks and answers in one step, under the lease's lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from duewheel.store.database.connections import DriverConnection, fetch
from duewheel.store.values.errors import LeaseLost

if TYPE_CHECKING:
    from duewheel.store.values.leases import Lease

HELD = "held"
ACKED = "acked"
OPEN = "open"
GIVEN_BACK = ("failed", "returned")
LOST = {
    "over": "ended unanswered",
    "expired": "ended unanswered, and its messages were delivered again",
    "rewound": "ended as its group was rewound",
    "unknown": "is unknown to the broker",
}
"""States of a lease whose messages another consumer may have by now, each with its wording in an error."""

_PARTS = Path(__file__).parent
_STATES = (_PARTS / "lease_states.sql").read_text()
_EXTEND = (_PARTS / "extend_unanswered.sql").read_text()
_NACK = (_PARTS / "nack_unanswered.sql").read_text()

_LEASES_PER_CALL = 500
"""Each answered lease holds a lock until the call ends, and all sessions share one table of locks."""


@dataclass(frozen=True)
class LeaseState:
    """A lease and its state.

    Attributes:
        lease: the lease.
        state: ``held``, ``acked``, ``failed``, ``returned``, or one of :data:`LOST`.
        acked: how many of its messages were acked.
    """

    lease: Lease
    state: str
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
) -> list[LeaseState]:
    """The states of leases of one group, in the order of the leases."""
    return [
        LeaseState(lease, state, acked)
        for some in _some(leases)
        for lease, (state, acked) in zip(
            some, fetch(connection, _STATES, (*handles_of(some), now)), strict=True
        )
    ]


def outcome_of(states: Iterable[LeaseState]) -> BatchOutcome:
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


def extend_unanswered(
    connection: DriverConnection, leases: Sequence[Lease], duration: timedelta, now: datetime | None = None
) -> list[str]:
    """Extend the leases that are held to end ``duration`` from now; returns the state that each lease had
    before."""
    return [
        state
        for some in _some(leases)
        for (state,) in fetch(connection, _EXTEND, (*handles_of(some), duration, now))
    ]


def nack_unanswered(
    connection: DriverConnection,
    leases: Sequence[Lease],
    delay: timedelta | None = None,
    *,
    reason: str | None = None,
    wait: timedelta = timedelta(seconds=30),
    now: datetime | None = None,
) -> list[LeaseState]:
    """Give back the unanswered messages of the leases.

    Args:
        connection: one that commits each statement by itself.
        leases: leases of one group.
        delay: when the messages come again, counted from now; None is the group's interval.
        reason: kept with the retries.
        wait: how long to wait in all for open transactions that answer one of the leases. Leases of
            transactions that are still open afterwards stay as they are.
        now: the instant to take for now; None is the database's clock.

    Returns:
        The state that each lease had before; ``open`` if a transaction still has it.
    """
    return [
        LeaseState(lease, state, 0)
        # Always in this order, so that two answers to the same leases never wait for each other in a circle.
        for some in _some(sorted(leases, key=lambda lease: (lease.topic_id, lease.queue, lease.n)))
        for lease, (state,) in zip(
            some, fetch(connection, _NACK, (*handles_of(some), delay, reason, wait, now)), strict=True
        )
    ]


def refusal(states: Iterable[LeaseState]) -> LeaseLost | None:
    """The error to raise when the messages of one of the leases may be with others, or None.

    Acked messages may be read again, since no other consumer gets them.
    """
    states = list(states)
    given_back = [state for state in states if state.state in GIVEN_BACK]
    if given_back:
        return LeaseLost(
            f"{sum(state.lease.count for state in given_back)} of the messages were given back (nacked), and "
            "are delivered again: take a new batch"
        )
    return lost_error(states)


def lost_error(states: Iterable[LeaseState]) -> LeaseLost | None:
    """The error to raise when one of the leases was lost, or None."""
    lost = [state for state in states if state.state in LOST]
    if not lost:
        return None
    first = lost[0]
    return LeaseLost(
        f"{len(lost)} leases were lost: lease {first.lease.n} on queue {first.lease.queue} of topic number "
        f"{first.lease.topic_id} {LOST[first.state]}. Their {sum(state.lease.count for state in lost)} "
        "messages may be with others: take a longer invisible duration, or keep the leases alive"
    )


def _some(leases: Sequence[Lease]) -> Iterable[Sequence[Lease]]:
    for start in range(0, len(leases), _LEASES_PER_CALL):
        yield leases[start : start + _LEASES_PER_CALL]


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
