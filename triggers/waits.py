"""The runs of this process that wait for an answer, and the one statement that asks about all of them.

The statement asks which waits were answered since the last one, whatever their number. It also looks up
:data:`PORTION` waits at most, to find recalled and moved ones: new waits and overdue ones first, then those
that were looked up longest ago. So a thousand waiting runs cost as much as a hundred.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from duewheel.store.values.errors import said
from duewheel.triggers.polling import DoorbellSnapshot, noting_failures

if TYPE_CHECKING:
    from duewheel.store import Broker

log = logging.getLogger(__name__)

PORTION = 100
"""How many waits a statement looks up."""

LIMIT_SECONDS = 2.0
"""How long the statement may take."""

OVERDUE_AGAIN = timedelta(seconds=1)
"""The pause between two lookups of a wait that has timed out and whose message is not released yet."""

_AT_ONCE = datetime.min.replace(tzinfo=UTC)


class Waits:
    """The waits of the triggers of this process, by connection: the id of each message, and its topic.

    Only touched from the event loop's thread, so it needs no lock.
    """

    def __init__(self) -> None:
        self._topics: dict[str, dict[str, str]] = {}
        self._triggers: Counter[tuple[str, str]] = Counter()

    @contextmanager
    def waiting(self, conn_id: str, message_id: str, topic: str) -> Iterator[None]:
        """Count a wait until the block ends."""
        topics = self._topics.setdefault(conn_id, {})
        topics[message_id] = topic
        self._triggers[conn_id, message_id] += 1
        try:
            yield
        finally:
            self._triggers[conn_id, message_id] -= 1
            if not self._triggers[conn_id, message_id]:
                del self._triggers[conn_id, message_id]
                del topics[message_id]

    def over(self, conn_id: str) -> Mapping[str, str]:
        """A copy of the waits over a connection: the topic of each message."""
        return dict(self._topics.get(conn_id, ()))


WAITS = Waits()


class WaitPoller:
    """Asks the broker which waits have ended. Used from one worker thread.

    Args:
        broker: the broker to ask.
        releases: whether a poll first releases due messages; False if a wheel does so.
        clock: seconds on any clock that is never set back.
    """

    def __init__(
        self, broker: Broker, *, releases: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._broker = broker
        self._releases = releases
        self._since: str | None = None
        # The next lookup of each wait, in the order of the last lookups.
        self._lookup_at: dict[str, datetime] = {}
        self._ended: set[str] = set()
        self._clock = clock
        self._at, self._polled_at_seconds = _AT_ONCE, clock()
        self._problem: str | None = None
        self.has_more = False
        """Whether the last poll has left waits that are to be looked up now."""

    def poll(self, waits: Mapping[str, str]) -> DoorbellSnapshot:
        """Return the waits that have ended, until their triggers are gone.

        A statement that fails is logged, and the poll finds nothing new.

        Args:
            waits: the ids of the messages, and their topics.
        """
        # Imported here: see BrokerAddress.open.
        from duewheel.store.operations.answering import poll_waits

        for gone in self._lookup_at.keys() - waits.keys():
            del self._lookup_at[gone]
        self._ended &= waits.keys()
        for wait in waits.keys() - self._lookup_at.keys() - self._ended:
            self._lookup_at[wait] = _AT_ONCE
        now = self._at + timedelta(seconds=self._clock() - self._polled_at_seconds)
        pressing = [wait for wait, lookup_at in self._lookup_at.items() if lookup_at <= now]
        others = [wait for wait, lookup_at in self._lookup_at.items() if lookup_at > now]
        asked = (pressing + others)[:PORTION]
        self.has_more = False
        with noting_failures(self._note_failure):
            if self._releases:
                self._release(
                    {waits[wait] for wait in pressing[:PORTION] if self._lookup_at[wait] > _AT_ONCE}
                )
            polled = poll_waits(self._broker, asked, self._since, limit_seconds=LIMIT_SECONDS)
            self._at, self._since = polled.at, polled.snapshot
            self._polled_at_seconds = self._clock()
            self._ended |= polled.ended & waits.keys()
            for wait in polled.ended & self._lookup_at.keys():
                del self._lookup_at[wait]
            for wait, due_at in polled.waiting.items():
                # After all others. An early lookup does not postpone that.
                lookup_at, again = self._lookup_at.pop(wait), polled.at + OVERDUE_AGAIN
                if due_at > polled.at:
                    self._lookup_at[wait] = due_at
                else:
                    self._lookup_at[wait] = min(lookup_at, again) if lookup_at > polled.at else again
            self.has_more = len(pressing) > PORTION
            self._problem = None
        return DoorbellSnapshot(self._at, {}, ended=frozenset(self._ended))

    def _note_failure(self, error: Exception) -> None:
        if self._problem != said(error):
            log.error(
                "The runs that wait for an answer could not be looked up: %s. It is tried again each second",
                said(error).rstrip(".") or type(error).__name__,
            )
        self._problem = said(error)

    def _release(self, topics: set[str]) -> None:
        for topic in topics:
            with noting_failures(self._note_failure):
                self._broker.tick(topic)
