"""Taking the leases of a part for the transaction that works on it, and acking them there.

A task of Spark may run twice, and both runs may be at work at once. The second run waits at the fence for the
first to commit. It then finds the messages acked, and has nothing to do.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from duewheel.spark.lease_states import refusal
from duewheel.spark.statements import statement
from duewheel.store.consuming.lease_states import HELD, handles_of, lease_states
from duewheel.store.database.connections import DriverConnection, fetch
from duewheel.store.values.errors import AlreadyAnswered, LeaseLost

if TYPE_CHECKING:
    from duewheel.store.values.leases import Lease

TRIES = 5
_FENCE = statement("fence_leases")
_ACK = statement("ack_leases")


def fenced(
    connection: DriverConnection,
    leases: tuple[Lease, ...],
    unanswered: Callable[[], set[int]] | None = None,
) -> tuple[list[Lease], set[int], str]:
    """Take leases that are not acked for the connection's transaction.

    Args:
        connection: without an open transaction.
        leases: of one group.
        unanswered: the numbers of the messages to take of the only lease; None takes whole leases.

    Returns:
        These leases, the numbers of their messages if not all are wanted, and the id of the transaction; no
        leases when all is acked.

    Raises:
        LeaseLost: a lease has ended or was given back, or some of its messages were answered one by one.
    """
    refused: AlreadyAnswered | None = None
    for _ in range(TRIES):
        states = lease_states(connection, leases)
        lost = refusal(states)
        if lost is not None:
            raise lost
        held = [state.lease for state in states if state.state == HELD]
        numbers = None if unanswered is None else unanswered()
        if not held or numbers == set():
            return [], set(), ""
        # Always in this order, so that two answers to the same leases never wait for each other in a circle.
        held.sort(key=_place)
        try:
            ((*_, xid),) = fetch(connection, _FENCE, (*handles_of(held), _chosen(numbers)))
        except AlreadyAnswered as error:
            # Another run committed while this one waited for it: look again.
            connection.rollback()
            refused = error
            continue
        return held, numbers or set(), xid
    raise LeaseLost(
        f"the part cannot be worked on as a whole ({refused}): reject single messages inside the function"
    )


def ack_leases(connection: DriverConnection, leases: list[Lease], numbers: set[int] | None = None) -> None:
    """Ack leases in the connection's transaction.

    Args:
        connection: its transaction has fenced them.
        leases: of one group.
        numbers: the messages to ack of the only lease; None acks whole leases.
    """
    fetch(connection, _ACK, (*handles_of(leases), _chosen(numbers)))


def _chosen(numbers: set[int] | None) -> str | None:
    return None if numbers is None else json.dumps([sorted(numbers)])


def _place(lease: Lease) -> tuple[int, int, int, int]:
    return (lease.group_id, lease.topic_id, lease.queue, lease.n)
