"""Seconds that pass when told, for code that measures how long something takes."""

from __future__ import annotations


class StandingTime:
    """Stands in for the module ``time`` where only ``time.monotonic`` is used."""

    def __init__(self) -> None:
        self._seconds = 0.0

    def monotonic(self) -> float:
        """The seconds that have passed."""
        return self._seconds

    def pass_by(self, seconds: float) -> None:
        """Let so many seconds pass."""
        self._seconds += seconds
