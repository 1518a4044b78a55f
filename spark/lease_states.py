"""The number of messages of a batch by the states of its leases."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from duewheel.store.consuming.lease_states import (
    ACKED,
    GIVEN_BACK,
    LOST,
    CountedState,
    LeaseState,
    given_back_error,
    lost_error,
)

if TYPE_CHECKING:
    from duewheel.store.values.errors import LeaseLost
    from duewheel.store.values.leases import Lease


@dataclass(frozen=True)
class BatchOutcome:
    """How many messages of a batch were answered, and how.

    Attributes:
        acked: their work is done.
        given_back: nacked; they are delivered again, or are dead letters.
        unanswered: still held.
        lost: their lease ended before they were answered; they are delivered again.
    """

    acked: int = 0
    given_back: int = 0
    unanswered: int = 0
    lost: int = 0


def outcome_of(states: Iterable[CountedState]) -> BatchOutcome:
    """Count the messages of leases by the leases' states."""
    acked = given_back = unanswered = lost = 0
    for state in states:
        acked += state.acked
        given_back += state.given_back
        rest = state.lease.count - state.acked - state.given_back
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
