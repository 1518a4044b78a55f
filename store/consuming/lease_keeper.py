"""Keep a lease alive while its messages are worked on.

A lease ends after its invisible duration, and messages that were not acked by then are delivered again. Work
that takes longer than that, or of unknown length such as a Spark job, runs inside a :class:`LeaseKeeper`. Its
thread extends the lease after each third of the duration, so two extensions may fail before the lease is in
danger.

The keeper never hides a lost lease. When the broker raises :class:`~duewheel.store.values.errors.LeaseLost`,
or when nothing could be extended for a whole duration, it sets :attr:`LeaseKeeper.lost`, keeps the reason in
:attr:`LeaseKeeper.error` and stops. The owner may check it between two steps of its work; if it does not,
the broker still refuses its ack. Only its owner, a lost lease, or the end of the process ends the keeper: a
killed process stops extending, and its messages are delivered again.

Work may ack leases while they are kept, one by one or in its own transaction: the keeper extends the leases
that are left, and waits for no transaction. Messages that are given back while they are kept count as lost,
unless :attr:`LeaseKeeper.may_be_given_back` is true.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Self

from duewheel.store.consuming.lease_states import given_back_error, lost_error
from duewheel.store.values.errors import LeaseLost
from duewheel.store.values.leases import Lease
from duewheel.store.values.numbers import counted

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta
    from types import TracebackType

    from duewheel.store.consuming.consumer import Consumer
    from duewheel.store.values.messages import Message

log = logging.getLogger(__name__)

EXTENSIONS_PER_LEASE = 3
RETRIES_PER_LEASE = 12


class LeaseKeeper:
    """Extend the lease of some messages in the background until the block is left.

    Args:
        consumer: the consumer that received the messages, or another of the same topic and group.
        messages: the messages whose lease to keep.
        invisible: the invisible duration they were received with. Each extension sets it again from now.

    Example::

        batch = consumer.receive(max_messages=1000, invisible=timedelta(seconds=60))
        with LeaseKeeper(consumer, batch, timedelta(seconds=60)) as keeper:
            for message in batch:
                handle(message)
                keeper.raise_if_lost()
        consumer.ack(batch)
    """

    def __init__(self, consumer: Consumer, messages: Sequence[Message | Lease], invisible: timedelta) -> None:
        self._consumer = consumer
        self._messages = messages
        self._invisible = invisible
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="duewheel-lease-keeper", daemon=True)
        self.lost = threading.Event()
        """Set when the lease was lost: work from then on may also be done elsewhere."""
        self.extended = threading.Event()
        """Set after each extension. A watcher may clear it and wait for the next one."""
        self.error: LeaseLost | None = None
        """Why the lease was lost, or ``None``."""
        self.may_be_given_back = False
        """Whether a lease that is given back counts as answered and not as lost."""

    def __enter__(self) -> Self:
        if self._messages:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End the extending and wait for a running extension. May be called more than once."""
        self._stop.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

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
            try:
                states = self._consumer.answer_held("extend", self._messages, invisible=self._invisible)
            except Exception as error:  # noqa: BLE001 - a keeper that dies loses the lease
                if time.monotonic() >= held_until:
                    self._give_up(self._outage(error))
                    return
                log.warning("Extending a lease failed, trying again: %s", error)
                pause_seconds = lease_seconds / RETRIES_PER_LEASE
            else:
                lost = lost_error(states)
                if lost is None and not self.may_be_given_back:
                    lost = given_back_error(states)
                if lost is not None:
                    self._give_up(lost)
                    return
                held_until = asked_at + lease_seconds
                pause_seconds = lease_seconds / EXTENSIONS_PER_LEASE
                self.extended.set()

    def _outage(self, error: Exception) -> LeaseLost:
        count = sum(each.count if isinstance(each, Lease) else 1 for each in self._messages)
        return LeaseLost(
            f"the lease on {counted(count, 'message')} could not be extended for its whole duration of "
            f"{self._invisible.total_seconds():g} s, last because of: {error}. They are delivered again; "
            "a longer invisible duration bridges longer outages"
        )

    def _give_up(self, error: LeaseLost) -> None:
        log.error("%s", error)
        self.error = error
        self.lost.set()
