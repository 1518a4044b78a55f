"""A clock that moves only when told, and the instant at which it starts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

#: Where the clock of the fixture ``clock`` stands at first: a Monday morning in winter.
NOW = datetime(2026, 1, 5, 9, 30, tzinfo=UTC)


class Clock:
    """An instant that moves when told; give it to ``Broker(dsn, clock=clock)``."""

    def __init__(self, now: datetime) -> None:
        self._now = now

    def __call__(self) -> datetime:
        """The instant it is."""
        return self._now

    def advance(self, by: timedelta) -> datetime:
        """Moves by a duration (back, if negative) and returns the new instant."""
        self._now += by
        return self._now

    def set(self, now: datetime) -> datetime:
        """Jumps to an aware instant and returns it."""
        if now.tzinfo is None:
            raise ValueError(f"{now!r} has no time zone: give an aware datetime")
        self._now = now
        return now
