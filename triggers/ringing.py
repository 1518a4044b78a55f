"""Decides when the doorbell of one group rings.

An Airflow event is a doorbell and not a letter: it says that a group has ready messages, and carries none.
Airflow merges events and may lose one. So each time, the decision to ring is made afresh from the broker's
logs:

* No messages are ready, or fewer than a run is worth: silence.
* Messages are ready, and the bell is not ringing yet: ring, even if other runs are at work. So as many runs
  work side by side as the DAG allows, and each brings the next as long as messages are left.
* The bell is ringing and no run has come: silence for ``ring_again_seconds``, then ring again. So a lost ring
  repeats itself.
* The bell is ringing, no new run has come, and other runs are at work: silence, since the new run may be
  waiting for one of them to end. If messages are taken all the same, by a run that comes and goes between two
  looks or by one that takes batch after batch, the bell rings again after a pause that doubles each time.

The memory of a bell is only its last ring: when it was, what was ready and who held messages then. It tells
whether a run came since: a new name holds messages, or no name does and the group's position has moved on.
Losing this memory, in a restart or on another triggerer, costs one ring too many. A run that finds nothing
ends at once.

The module is pure: no clock, no I/O; seconds come in as an argument.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

    from duewheel.store import Doorbell


@dataclass
class Ring:
    """A ring that no run has answered yet."""

    at_seconds: float
    most_ready: int
    oldest_deliver_at: datetime | None
    holders: frozenset[str]
    pause_seconds: float
    """How long to wait for an answer before ringing again."""


class Ringing:
    """The doorbell of one group, heard again and again.

    Args:
        ring_again_seconds: how long to wait for a run before ringing again.
        min_messages: how many messages have to be ready.
        max_wait_seconds: ring for fewer once the oldest has been ready for this long; None: never.

    Example::

        bell = Ringing(ring_again_seconds=60)
        if bell.rings(doorbell, looked_at=database_now, at_seconds=time.monotonic()):
            start_a_run()
    """

    def __init__(
        self, *, ring_again_seconds: float, min_messages: int = 1, max_wait_seconds: float | None = None
    ) -> None:
        self._ring_again_seconds = ring_again_seconds
        self._min_messages = min_messages
        self._max_wait_seconds = max_wait_seconds
        self._ringing: Ring | None = None

    def rings(self, doorbell: Doorbell, *, looked_at: datetime, at_seconds: float) -> bool:
        """Decide whether to ring now, and remember the ring.

        Args:
            doorbell: the state of the group by the broker's logs.
            looked_at: the moment of that state by the database's clock, which tells how long messages have
                waited.
            at_seconds: now, on any clock that never goes back, which tells how long it has been ringing.
        """
        if doorbell.ready == 0 or self._was_answered(doorbell):
            self._ringing = None
        if not self._is_worth_a_run(doorbell, looked_at):
            return False
        ring = self._ringing
        pause_seconds = self._ring_again_seconds
        if ring is not None:
            is_over = at_seconds - ring.at_seconds >= ring.pause_seconds
            if not is_over or (doorbell.inflight and not _has_moved_on(ring, doorbell)):
                ring.most_ready = max(ring.most_ready, doorbell.ready)
                return False
            if doorbell.inflight:
                pause_seconds = 2 * ring.pause_seconds
        self._ringing = Ring(
            at_seconds, doorbell.ready, doorbell.oldest_deliver_at, frozenset(doorbell.holders), pause_seconds
        )
        return True

    def _is_worth_a_run(self, doorbell: Doorbell, looked_at: datetime) -> bool:
        if doorbell.ready >= self._min_messages:
            return True
        if self._max_wait_seconds is None or doorbell.oldest_deliver_at is None:
            return False
        return (looked_at - doorbell.oldest_deliver_at).total_seconds() >= self._max_wait_seconds

    def _was_answered(self, doorbell: Doorbell) -> bool:
        """Whether a run came since the ring, even one whose lease was taken and answered between two
        looks."""
        ring = self._ringing
        if ring is None:
            return False
        if doorbell.inflight:
            return not ring.holders.issuperset(doorbell.holders)
        return _has_moved_on(ring, doorbell)


def _has_moved_on(ring: Ring, doorbell: Doorbell) -> bool:
    """Whether messages were taken since the ring."""
    if doorbell.ready < ring.most_ready:
        return True
    return (
        ring.oldest_deliver_at is not None
        and doorbell.oldest_deliver_at is not None
        and doorbell.oldest_deliver_at > ring.oldest_deliver_at
    )
