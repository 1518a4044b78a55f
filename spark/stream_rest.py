"""The rest of an idle stream, which ends when something is released.

Spark asks a source again at once if the query has no trigger. So the driver rests before it
looks once more. A release ends the rest as it ends the wait of a consumer, by the same signals. Where no
wheel turns, the stream's own poll releases due messages, and behind a pooler by transaction no release is
heard. So a rest also ends without one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from duewheel.store.consuming.signals import Signals
from duewheel.store.values.errors import BrokerUnreachable

if TYPE_CHECKING:
    from duewheel.store.consuming.signals import Signal

FIRST_REST_SECONDS = 0.02
MOST_REST_SECONDS = 0.5

pause = time.sleep


class StreamRest:
    """The rests of one stream. Behind a pooler by transaction (``listen`` false) each ends by time."""

    def __init__(self, dsn: str, *, listen: bool) -> None:
        self._signals = Signals(dsn, listen=listen)
        self._lent = ExitStack()
        self._signal: Signal | None = None
        self._seconds = 0.0
        self._was_woken = False

    def take(self) -> None:
        """Rest, if the last look was in vain, until something is released."""
        if not self._seconds:
            return
        # Woken in vain, as by the releases of a paused group, it would be woken at once again.
        if self._signal is None or self._was_woken:
            self._was_woken = False
            pause(self._seconds)
            return
        try:
            self._was_woken = self._signal.wait(self._seconds)
        except BrokerUnreachable:
            # The look that follows waits for the broker.
            pause(self._seconds)

    def begin_look(self, keys: Sequence[tuple[int, int]], name: str) -> None:
        """Call before a poll: a release from now on ends the next rest.

        Args:
            keys: the numbers of each topic that is looked at, and of the stream's group there.
            name: the stream's, which is listed among the consumers that wait.
        """
        if self._signal is None or self._signal.keys != tuple(keys):
            self._lent.close()
            self._signal = self._lent.enter_context(self._signals.lend(name, *keys))
        self._signal.catch_up()

    def lengthen(self) -> None:
        """A look was in vain."""
        self._seconds = min(max(FIRST_REST_SECONDS, 2 * self._seconds), MOST_REST_SECONDS)

    def end(self) -> None:
        """A look was not in vain."""
        self._seconds = 0.0
        self._was_woken = False

    def close(self) -> None:
        """Close the connection that listens."""
        self._lent.close()
        self._signals.close()
