"""When the doorbell of one group rings.

An Airflow event is a doorbell and no letter: it says that a group has messages to fetch, and carries none.
Airflow merges events and may lose one, so whether to ring follows each time anew from what the broker's logs
say:

* Nothing is ready, or less than is worth a run: silence.
* Messages are ready, and it does not ring already: ring, whoever else is at work. So there are as many runs
  side by side as the DAG allows, each of which brings the next as long as something is left.
* It rings already and nobody came: silence, for ``ring_again_seconds``; then ring again. A lost ring repeats
  itself.
* It rings already, nobody came, and others are at work: silence, since the run that was rung for may be
  waiting for one of theirs to end. Where messages go meanwhile, as somebody comes and goes between two looks
  or one run takes batch after batch, it rings again after a pause that doubles each time.

What is remembered is only when it rang last, what was ready and who was at work then, to tell whether
somebody came in between: a new name holds messages, or nobody does and the group's position has moved on.
Forgetting it, in a restart or on another triggerer, costs one ring too many, and a run that finds nothing
ends at once.

Pure: no clock, no I/O; seconds come in as an argument.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

    from duewheel.store import Doorbell


@dataclass
class Ring:
    """A ring that nobody has answered yet."""

    at_seconds: float
    most_ready: int
    oldest_deliver_at: datetime | None
    holders: frozenset[str]
    pause_seconds: float
    """How long it rings before it rings again."""


class Ringing:
    """The doorbell of one group, heard again and again.

    Args:
        ring_again_seconds: how long to wait for somebody to come before it rings again.
        min_messages: how many messages have to be ready.
        max_wait_seconds: ring for fewer when the oldest has been ready for this long; None: never.

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
        """Say whether to ring now, and remember it if so.

        Args:
            doorbell: what the broker's logs say about the group.
            looked_at: when they said it, by the database's clock, which tells how long messages have waited.
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
        """Whether somebody came since the ring, even if the lease was taken and answered between two
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
