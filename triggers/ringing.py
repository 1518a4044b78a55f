"""Decides when the doorbell of one group rings.

An Airflow event is a doorbell and not a letter: it says that a group has ready messages, and carries none.
Airflow merges events and may lose one. So each time, the decision to ring is made afresh from the broker's
logs:

* No messages are ready, or fewer than a run is worth: silence.
* Messages are ready, and the bell is not ringing yet: ring, even if other runs are at work. So as many runs
  work side by side as the DAG allows, and each brings the next as long as messages are left.
* A run has taken messages and has left some: ring on, every :data:`NEXT_RING_SECONDS`, for as long as more is
  ready than the expected runs will take, each as much as the first one took. Airflow then starts runs in
  parallel, up to ``max_active_runs``, and not each after the lease of the previous run.
* The bell is ringing and no run has started: silence for ``ring_again_seconds``, then ring again. So a lost
  ring is repeated.
* The bell is ringing, no new run has started, and other runs are at work: ring again after a pause that
  doubles each time. The new run may be waiting for one of them to end, or its ring may be lost; the two look
  the same. An hour of work costs five rings at a pause of 60 seconds, ten at one of two.

The memory of a bell is its last ring: its time, the ready messages and the holders of messages then. Until
nothing is ready, it also has the number of rings without an answer and how much a run takes. It shows whether
a run has started since: a new name holds messages, or no name does and the group's position has moved.
Losing this memory, in a restart or on another triggerer, costs one ring too many. A run that finds nothing
ends at once.

The module is pure, without a clock or I/O; seconds are an argument.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

    from duewheel.store import Doorbell


NEXT_RING_SECONDS = 1.0
"""The pause between two rings for parallel runs: Airflow makes one run a second of an asset's events, and
merges events in between."""

MOST_ON_THE_WAY = 16
"""How many rings may be without an answer: as many runs as Airflow starts of a DAG unless told otherwise."""

TIMES_AS_LONG = 2
"""An additional ring counts as lost or merged if no run has started for this many times as long as the first
run took."""


@dataclass
class Ring:
    """The last ring, as long as there are rings that no run has answered."""

    at_seconds: float
    """The time of the ring, or of the newest run since."""
    most_ready: int
    oldest_deliver_at: datetime | None
    holders: frozenset[str]
    pause_seconds: float
    """How long to wait for an answer before ringing again."""


class Ringing:
    """The doorbell of one group, heard again and again.

    Args:
        ring_again_seconds: the wait for a run before ringing again.
        min_messages: how many messages have to be ready.
        max_wait_seconds: ring for fewer once the oldest has been ready for this long; None: never.

    Example::

        bell = Ringing(ring_again_seconds=60)
        if bell.rings(doorbell, polled_at=database_now, at_seconds=time.monotonic()):
            start_a_run()
    """

    def __init__(
        self, *, ring_again_seconds: float, min_messages: int = 1, max_wait_seconds: float | None = None
    ) -> None:
        self._ring_again_seconds = ring_again_seconds
        self._min_messages = min_messages
        self._max_wait_seconds = max_wait_seconds
        self._ringing: Ring | None = None
        self._rang_at_seconds = 0.0
        self._on_the_way = 0
        self._taken = 0
        """How many messages a run takes; 0 until one has left some over."""
        self._answer_seconds = 0.0

    def rings(self, doorbell: Doorbell, *, polled_at: datetime, at_seconds: float) -> bool:
        """Decide whether to ring now, and remember the ring.

        Args:
            doorbell: the state of the group by the broker's logs.
            polled_at: the moment of that state by the database's clock, to compute how long messages have
                waited.
            at_seconds: now, on any clock that is never set back, to compute how long it has been ringing.
        """
        if doorbell.ready == 0:
            self._ringing, self._taken = None, 0
        elif self._was_answered(doorbell):
            self._note_answer(doorbell, at_seconds)
        if not self._is_worth_a_run(doorbell, polled_at):
            return False
        ring = self._ringing
        if ring is None:
            return self._ring(doorbell, at_seconds, on_the_way=1)
        if self._is_more_than_on_the_way(doorbell.ready):
            if at_seconds - self._rang_at_seconds >= NEXT_RING_SECONDS:
                return self._ring(doorbell, at_seconds, on_the_way=self._on_the_way + 1)
            return False
        if at_seconds - ring.at_seconds < ring.pause_seconds:
            ring.most_ready = max(ring.most_ready, doorbell.ready)
            return False
        if doorbell.inflight:
            pause_seconds = 2 * ring.pause_seconds
            return self._ring(doorbell, at_seconds, on_the_way=self._on_the_way, pause_seconds=pause_seconds)
        return self._ring(doorbell, at_seconds, on_the_way=1)

    def _ring(
        self, doorbell: Doorbell, at_seconds: float, *, on_the_way: int, pause_seconds: float | None = None
    ) -> bool:
        self._on_the_way = on_the_way
        self._rang_at_seconds = at_seconds
        if pause_seconds is None:
            pause_seconds = self._pause_seconds()
        self._ringing = Ring(
            at_seconds, doorbell.ready, doorbell.oldest_deliver_at, frozenset(doorbell.holders), pause_seconds
        )
        return True

    def _pause_seconds(self) -> float:
        return self._ring_again_seconds if self._on_the_way <= 1 else self._soon_seconds()

    def _soon_seconds(self) -> float:
        return min(self._ring_again_seconds, TIMES_AS_LONG * max(self._answer_seconds, NEXT_RING_SECONDS))

    def _is_more_than_on_the_way(self, ready: int) -> bool:
        return 0 < self._taken * self._on_the_way < ready and self._on_the_way < MOST_ON_THE_WAY

    def _note_answer(self, doorbell: Doorbell, at_seconds: float) -> None:
        """Count the runs that started, and learn from the first how much one takes and how long it needs."""
        ring = self._ringing
        assert ring is not None
        came = max(1, len(set(doorbell.holders) - ring.holders))
        taken = ring.most_ready - doorbell.ready
        if taken > 0 and self._taken:
            came = max(came, taken // self._taken)
        elif taken > 0:
            self._taken = max(1, taken // came)
            self._answer_seconds = at_seconds - ring.at_seconds
        self._on_the_way = max(0, self._on_the_way - came)
        if self._on_the_way == 0:
            self._ringing = None
            return
        self._ringing = replace(
            ring,
            at_seconds=at_seconds,
            most_ready=doorbell.ready,
            oldest_deliver_at=doorbell.oldest_deliver_at,
            holders=frozenset(doorbell.holders),
            pause_seconds=self._soon_seconds(),
        )

    def _is_worth_a_run(self, doorbell: Doorbell, polled_at: datetime) -> bool:
        if doorbell.has(self._min_messages):
            return True
        if doorbell.ready and doorbell.oldest_deliver_at is None:
            # No message that was read is for the group, and others follow: only a run moves past them.
            return True
        if self._max_wait_seconds is None or doorbell.oldest_deliver_at is None:
            return False
        return (polled_at - doorbell.oldest_deliver_at).total_seconds() >= self._max_wait_seconds

    def _was_answered(self, doorbell: Doorbell) -> bool:
        """Whether a run has started since the ring, even if its lease was taken and answered between two
        polls."""
        ring = self._ringing
        if ring is None:
            return False
        if doorbell.inflight:
            return not ring.holders.issuperset(doorbell.holders)
        return _has_moved_on(ring, doorbell)


def _has_moved_on(ring: Ring, doorbell: Doorbell) -> bool:
    if doorbell.ready < ring.most_ready:
        return True
    return (
        ring.oldest_deliver_at is not None
        and doorbell.oldest_deliver_at is not None
        and doorbell.oldest_deliver_at > ring.oldest_deliver_at
    )
