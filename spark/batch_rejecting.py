"""Rejecting single messages of a leased batch, and what the batch remembers of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from duewheel.spark.lease_states import handle_prefix, refusal
from duewheel.spark.rejecting import HANDLE, REASON, checked_delay, named_messages, reject_leased
from duewheel.store.consuming.lease_states import (
    FAILED,
    HELD,
    LeaseState,
    lease_states,
    lost_error,
    raise_if_lost,
)
from duewheel.store.values.errors import InvalidArgument

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from duewheel.store.broker import Broker
    from duewheel.store.values.errors import LeaseLost
    from duewheel.store.values.leases import Lease


class OwnRejects:
    """What the work on a batch gave back, so that the batch does not count it as lost.

    Attributes:
        leases: the leases of which every message was rejected.
    """

    def __init__(self) -> None:
        self.leases: set[Lease] = set()
        # A count and not a flag: several threads may reject at once.
        self._under_way = 0

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """While the block runs, leases may be given back whose number is not known yet."""
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1

    def loss(self, states: Sequence[LeaseState]) -> LeaseLost | None:
        """The error to raise when messages may be with others although the work gave none of them back."""
        if self._under_way:
            return lost_error(states)
        return refusal(state for state in states if state.lease not in self.leases)


def reject_of_batch(
    broker: Broker,
    leases: Sequence[Lease],
    read: Callable[[Sequence[Lease], Sequence[str]], DataFrame],
    own: OwnRejects,
    messages: DataFrame,
    reason: str | None,
    delay: timedelta | None,
) -> int:
    """Reject messages that all belong to a batch; returns how many they are.

    Args:
        broker: where they are.
        leases: those of the batch.
        read: reads columns of leases, also of messages that were rejected before.
        own: what the batch remembers of its rejects.
        messages, reason, delay: see :meth:`duewheel.spark.batch.Batch.reject`.
    """
    named = named_messages(messages, reason)
    span = checked_delay(delay)
    given = named.columns[0]
    with broker.connection() as connection:
        states = lease_states(connection, leases, broker.now())
    raise_if_lost(states)
    # Messages rejected before belong to the batch, too, and stay rejected.
    held = [state.lease for state in states if state.state == HELD]
    known = read(held, [given] if given == HANDLE else [given, HANDLE])
    handle = known[HANDLE].alias("handle")
    found = named.join(
        known.select(known[given].alias("known"), handle), named[given] == f.col("known"), "left"
    )
    # Read once, for the check and for the answers.
    found = found.select(named[given].alias("given"), f.col("handle").alias(HANDLE), REASON).persist()
    try:
        again = _require_known(found, _whole(own.leases) if given == HANDLE and own.leases else None)
        with own.under_way():
            known_now = found.where(f.col(HANDLE).isNotNull()).select(HANDLE, REASON)
            rejected = again + reject_leased(known_now, broker.dsn, span, broker.now())
            with broker.connection() as connection:
                states = lease_states(connection, leases, broker.now())
            # Another consumer gave back a lease that is returned: messages are rejected as failed.
            own.leases = {state.lease for state in states if state.state == FAILED}
    finally:
        found.unpersist()
    return rejected


def _whole(leases: set[Lease]) -> Column:
    """Whether a handle is of a lease that is rejected as a whole, whose messages cannot be looked up."""
    return f.substring_index("given", ".", 5).isin([handle_prefix(lease) for lease in leases])


def _require_known(found: DataFrame, whole: Column | None) -> int:
    """Refuse messages that are not of the batch; how many of the others were rejected with their lease."""
    foreign = found.where(f.col(HANDLE).isNull())
    again = 0
    if whole is not None:
        again = foreign.where(whole).select("given").distinct().count()
        foreign = foreign.where(f.coalesce(~whole, f.lit(True)))
    examples = foreign.limit(1).collect()
    if examples:
        raise InvalidArgument(
            f"{foreign.count()} of the {found.count()} messages are not of this batch, or were "
            f"answered before, such as {examples[0].given}; none is rejected: give only messages "
            "that the batch holds"
        )
    return again
