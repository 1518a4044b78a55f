"""Keep a lease alive while its messages are worked on.

A lease ends after its invisible duration, and messages that were not acked by then are delivered again. Work
that takes longer than that, or of unknown length such as a Spark job, runs inside a :class:`LeaseKeeper`: a
thread of its own extends the lease each time a third of the duration has passed, so two extensions may fail
before the lease is in danger.

The keeper never hides a lost lease. When the broker answers :class:`~duewheel.store.values.errors.LeaseLost`,
or when nothing could be extended for a whole duration, it sets :attr:`LeaseKeeper.lost`, keeps the reason in
:attr:`LeaseKeeper.error` and stops. The owner may look at it between two steps of its work; if it does not,
the broker refuses its ack all the same. Only its owner, a lost lease, or the end of the process ends the
keeper: a killed process stops extending, and its messages come back by themselves.

An extension that runs beside an ack would find the lease gone and call it lost, so the context is left first
and the messages are acked afterwards. Work that answers lease by lease calls :meth:`LeaseKeeper.keep_only`
before the answer that ends one. Work that acks a whole lease in a transaction of its own ends that one alone.
A fence may stand inside it: an extension waits a second at most for the transaction that holds the lease, and
counts if that one rolls back.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any, Protocol, Self

from duewheel.store.values.errors import LeaseLost
from duewheel.store.values.leases import Lease

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta
    from types import TracebackType

    from duewheel.store.values.messages import Message

log = logging.getLogger(__name__)

WAS_ACKED = "answered before (acked)"
"""The broker's word for a lease that was acked, as by work that acks in a transaction of its own."""

EXTENSIONS_PER_LEASE = 3
RETRIES_PER_LEASE = 12


class Extends(Protocol):
    """The part of a consumer that the keeper needs: the one call that extends a lease."""

    def change_invisible_duration(self, messages: Sequence[Any], duration: timedelta) -> None:
        """Let the messages stay invisible for ``duration`` from now on."""


class LeaseKeeper:
    """Extend the lease of some messages in the background until the block is left.

    Args:
        consumer: the consumer that received the messages, or another one of the same topic and group.
        messages: the messages whose lease to keep.
        invisible: the invisible duration they were received with. Each extension makes the lease last this
            long again from its moment on.

    Example::

        batch = consumer.receive(max_messages=1000, invisible=timedelta(seconds=60))
        with LeaseKeeper(consumer, batch, timedelta(seconds=60)) as keeper:
            for message in batch:
                handle(message)
                keeper.raise_if_lost()
        consumer.ack(batch)
    """

    def __init__(self, consumer: Extends, messages: Sequence[Message | Lease], invisible: timedelta) -> None:
        self._consumer = consumer
        self._messages = messages
        self._invisible = invisible
        self._acked: set[tuple[int, int, int]] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="duewheel-lease-keeper", daemon=True)
        self.lost = threading.Event()
        """Set when the lease was lost: what is done from then on may be done elsewhere too."""
        self.extended = threading.Event()
        """Set after each extension. A watcher may clear it and wait for the next one."""
        self.error: LeaseLost | None = None
        """Why the lease was lost, or ``None``."""

    def __enter__(self) -> Self:
        if self._messages:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End the extending and wait for an extension that is under way. May be called more than once."""
        self._stop.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def keep_only(self, messages: Sequence[Message | Lease]) -> None:
        """Extend only the leases of these messages from now on; the others are about to be answered.

        Args:
            messages: messages or leases; with none of them the keeper waits for its end.

        Takes no lock, so a signal handler that stops the keeper may interrupt it.
        """
        self._messages = messages

    def raise_if_lost(self) -> None:
        """Do nothing while the lease is held.

        Raises:
            LeaseLost: the lease was lost; the message says why.
        """
        if self.error is not None:
            raise self.error

    def _keep(self) -> None:
        lease_seconds = self._invisible.total_seconds()
        held_until = time.monotonic() + lease_seconds
        pause_seconds = lease_seconds / EXTENSIONS_PER_LEASE
        while not self._stop.wait(pause_seconds):
            asked_at = time.monotonic()
            messages = self._messages
            try:
                self._extend(messages)
            except LeaseLost as error:
                if messages is not self._messages:
                    # A lease was answered meanwhile, so none was extended: those that are left are now.
                    pause_seconds = 0
                    continue
                self._give_up(error)
                return
            except Exception as error:  # noqa: BLE001 - a keeper that dies loses the lease
                if time.monotonic() >= held_until:
                    self._give_up(self._outage(error))
                    return
                log.warning("Extending a lease failed, trying again: %s", error)
                pause_seconds = lease_seconds / RETRIES_PER_LEASE
            else:
                held_until = asked_at + lease_seconds
                pause_seconds = lease_seconds / EXTENSIONS_PER_LEASE
                self.extended.set()

    def _extend(self, messages: Sequence[Message | Lease]) -> None:
        """Extend all in one statement; where that is refused, lease by lease, leaving out what was acked."""
        left = messages
        if self._acked:
            left = [each for each in messages if _lease_of(each).place not in self._acked]
        try:
            self._consumer.change_invisible_duration(left, self._invisible)
        except LeaseLost:
            by_lease: dict[tuple[int, int, int], list[Message | Lease]] = {}
            for each in left:
                by_lease.setdefault(_lease_of(each).place, []).append(each)
            for place, of_lease in by_lease.items():
                try:
                    self._consumer.change_invisible_duration(of_lease, self._invisible)
                except LeaseLost as error:
                    if WAS_ACKED not in str(error):
                        raise
                    self._acked.add(place)

    def _outage(self, error: Exception) -> LeaseLost:
        count = sum(each.count if isinstance(each, Lease) else 1 for each in self._messages)
        return LeaseLost(
            f"the lease on {count} messages could not be extended for its whole duration of "
            f"{self._invisible.total_seconds():g} s, last because of: {error}. They are delivered again; "
            "a longer invisible duration bridges longer outages"
        )

    def _give_up(self, error: LeaseLost) -> None:
        log.error("%s", error)
        self.error = error
        self.lost.set()


def _lease_of(each: Message | Lease) -> Lease:
    return each if isinstance(each, Lease) else each.lease
