"""How long to wait before trying again: twice as long after each failure, 0.1 s at first and 30 s at most.

Callers that would all try again at once take random pauses, so that chance decides who is first.
"""

from __future__ import annotations

import random
from typing import Final

FIRST_SECONDS: Final = 0.1
LONGEST_SECONDS: Final = 30.0


class Backoff:
    """Waiting times after failures in a row.

    >>> backoff = Backoff()
    >>> backoff.next_seconds(), backoff.next_seconds(), backoff.next_seconds()
    (0.1, 0.2, 0.4)
    >>> backoff.reset()
    >>> backoff.next_seconds()
    0.1
    """

    __slots__ = ("_first_seconds", "_longest_seconds", "_next_seconds")

    def __init__(
        self, first_seconds: float = FIRST_SECONDS, longest_seconds: float = LONGEST_SECONDS
    ) -> None:
        self._first_seconds = first_seconds
        self._longest_seconds = longest_seconds
        self._next_seconds = first_seconds

    def next_seconds(self) -> float:
        """The time to wait after one more failure."""
        seconds = self._next_seconds
        self._next_seconds = min(2 * seconds, self._longest_seconds)
        return seconds

    def reset(self) -> None:
        """Note a success: the next failure counts as a first one again."""
        self._next_seconds = self._first_seconds


class Restraint:
    """Random pauses for one of many waiters that the same event wakes, when there is too little work for all.

    A waiter that finds work asks again at once. A waiter that finds none pauses at random before it asks
    again, for up to twice as long each time. In that pause it usually hears that others took the work.

    Args:
        first_seconds: the longest pause after the first attempt without work.
        longest_seconds: the longest pause of all.

    >>> restraint = Restraint(0.004, 0.064)
    >>> restraint.pause_seconds()
    0.0
    >>> 0 <= restraint.pause_seconds() <= 0.004
    True
    """

    __slots__ = ("_backoff", "_is_new")

    def __init__(self, first_seconds: float, longest_seconds: float) -> None:
        self._backoff = Backoff(first_seconds, longest_seconds)
        self._is_new = True

    def pause_seconds(self) -> float:
        """How long to pause before the next attempt."""
        if self._is_new:
            self._is_new = False
            return 0.0
        return random.uniform(0.0, self._backoff.next_seconds())

    def reset(self) -> None:
        """Note that there was work: the next attempt is made at once."""
        self._is_new = True
        self._backoff.reset()
