"""A clock that moves only when told, and the instant at which it starts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from tests.waiting import connected

#: Where the clock of the fixture ``clock`` stands at first: a Monday morning in winter.
NOW = datetime(2026, 1, 5, 9, 30, tzinfo=UTC)
#: Upkeep that comes again after this time believes the clock.
BELIEVED_AFTER: Final = timedelta(minutes=10)


def believe(dsn: str, now: datetime) -> None:
    """Lets a broker's upkeep believe an instant, as though it had come ten minutes before, too."""
    with connected(dsn) as connection, connection.cursor() as cursor:
        cursor.execute("update duewheel.broker set noted_at = %(now)s, believed_at = %(now)s", {"now": now})


class Clock:
    """An instant that moves when told; give it to ``Broker(dsn, clock=clock)``.

    Upkeep believes a clock slowly. The upkeep of the broker at ``upkeep_dsn`` believes every instant that
    this clock advances to, as if it had run often meanwhile. It does not believe an instant that was set.
    """

    def __init__(self, now: datetime, upkeep_dsn: str | None = None) -> None:
        self._now = now
        self.upkeep_dsn = upkeep_dsn

    def __call__(self) -> datetime:
        """The instant it is."""
        return self._now

    def advance(self, by: timedelta) -> datetime:
        """Moves by a duration (back, if negative) and returns the new instant."""
        self._now += by
        if self.upkeep_dsn is not None and by >= BELIEVED_AFTER:
            believe(self.upkeep_dsn, self._now)
        return self._now

    def set(self, now: datetime) -> datetime:
        """Jumps to an aware instant and returns it."""
        if now.tzinfo is None:
            raise ValueError(f"{now!r} has no time zone: give an aware datetime")
        self._now = now
        return now
