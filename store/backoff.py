"""How long to wait before trying again: twice as long after each failure, 0.1 s at first and 30 s at most."""

from __future__ import annotations

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
        """It worked: the next failure is a first one again."""
        self._next_seconds = self._first_seconds
