"""The time on the database's clock, without asking the database.

Only the database's clock decides when a message is due. To sleep exactly until then, the wheel has to
know how far that clock is from the machine's monotonic clock. Each answer that contains the database's time
bounds the distance from both sides: the clock was read between the request and the answer. The narrowest such
bounds are kept until drift could have made them worse than newer ones. New bounds that contradict the old
ones replace them at once, because a clock was set.

The distance only determines when to wake. A tick uses the database's clock itself, so a wrong distance makes
the wheel wake too soon (and try again) or late, but never releases a message early.
"""

from __future__ import annotations

from typing import Final, NamedTuple

#: Two clocks that are not set drift apart by less than this, ms per ms.
DRIFT: Final = 0.000_5


class ClockReading(NamedTuple):
    """The database's clock (Unix ms), and the monotonic one before asking and after the answer (ms)."""

    database_ms: float
    sent_ms: float
    received_ms: float


class DatabaseClock:
    """The distance between the database's clock and the monotonic clock, from readings.

    >>> clock = DatabaseClock()
    >>> clock.observe(ClockReading(database_ms=50_001, sent_ms=10_000, received_ms=10_002))
    >>> clock.database_ms(10_500)
    50500.0
    >>> clock.monotonic_ms(50_600)
    10600.0
    """

    __slots__ = ("_distance_ms", "_error_ms", "_measured_at_ms")

    def __init__(self) -> None:
        self._distance_ms: float | None = None
        self._error_ms = 0.0
        self._measured_at_ms = 0.0

    @property
    def known(self) -> bool:
        """Whether there has been a reading."""
        return self._distance_ms is not None

    def observe(self, reading: ClockReading) -> None:
        """Take a reading into account."""
        least_ms = reading.database_ms - reading.received_ms
        most_ms = reading.database_ms - reading.sent_ms
        error_ms = (most_ms - least_ms) / 2
        if self._distance_ms is not None and least_ms <= self._distance_ms <= most_ms:
            known_error_ms = self._error_ms + DRIFT * (reading.received_ms - self._measured_at_ms)
            if known_error_ms <= error_ms:
                return
        self._distance_ms = (least_ms + most_ms) / 2
        self._error_ms = error_ms
        self._measured_at_ms = reading.received_ms

    def database_ms(self, monotonic_ms: float) -> float:
        """The time on the database's clock (Unix ms) at an instant of the monotonic one (ms).

        Raises:
            LookupError: there has been no reading yet.
        """
        return monotonic_ms + self._known_distance_ms()

    def monotonic_ms(self, database_ms: float) -> float:
        """The instant of the monotonic clock (ms) at which the database's shows this (Unix ms).

        Raises:
            LookupError: there has been no reading yet.
        """
        return database_ms - self._known_distance_ms()

    def _known_distance_ms(self) -> float:
        if self._distance_ms is None:
            raise LookupError("the database's clock has not been read yet: observe a reading first")
        return self._distance_ms
