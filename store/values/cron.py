"""When a schedule fires: cron expressions on the wall clock of a time zone, and fixed intervals.

Pure: no clock and no database. A cron schedule fires at every instant whose local time matches its
expression. So a wall time that the clocks show twice fires twice, and a wall time that they skip does not
fire. The search uses the wall clock alone while the zone's offset from UTC stays the same. When the offset
changes, the search continues from the change with the new offset.

A fixed interval needs no wall clock: its occurrences are so many microseconds apart, counted from an anchor.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Protocol
from zoneinfo import ZoneInfo

from duewheel.store.values.errors import InvalidSchedule
from duewheel.store.values.extras import extra, missing
from duewheel.store.values.instants import said_span

if TYPE_CHECKING:
    from croniter import croniter

#: The longest cron expression, in characters.
LONGEST_CRON: Final = 255
#: The shortest and the longest interval.
SHORTEST_EVERY: Final = timedelta(seconds=1)
LONGEST_EVERY: Final = timedelta(days=3660)

_ALIASES = frozenset({"@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"})
_FIELDS = "minute, hour, day of month, month and day of week, such as '0 5 * * *' for 5 o'clock every day"
_FIELD = re.compile(r"[0-9A-Za-z*/,#?-]+", re.ASCII)
# H and R let the parser choose a value, a different one in each process.
_CHOSEN = re.compile(r"[hr](/.*)?", re.ASCII | re.IGNORECASE)
_MINUTE = timedelta(minutes=1)
#: Two changes of a zone's offset are farther apart than this.
_STRIDE = timedelta(hours=3)
_LAST_YEAR = 9990
#: A wall time without a zone.
_SOME_DAY = datetime(2000, 1, 1)  # noqa: DTZ001


class Rule(Protocol):
    """A rule that says when a schedule fires."""

    def first_from(self, instant: datetime) -> datetime | None:
        """The first occurrence at or after an instant, or None if there are no more."""

    def next_after(self, instant: datetime) -> datetime | None:
        """The first occurrence after an instant, or None if there are no more."""

    def last_until(self, instant: datetime, since: datetime) -> datetime:
        """The last occurrence at or before an instant; ``since`` is an occurrence at or before it."""


class Cron:
    """A cron expression on the wall clock of a time zone.

    Args:
        expression: minute, hour, day of month, month, day of week, as Vixie cron has them: ``*``, numbers,
            names of months and weekdays, lists, ranges, steps; 0 and 7 are Sunday. If both days are given,
            one of them has to match. Also ``L`` for the last day of a month, ``5#2`` for the second Friday,
            ``15W`` for the weekday next to the 15th, and ``@yearly``, ``@annually``, ``@monthly``,
            ``@weekly``, ``@daily``, ``@midnight``, ``@hourly``. At most 255 characters.
        timezone: a name of the IANA database, such as ``Europe/Berlin``.

    Raises:
        InvalidSchedule: not an expression or a zone, or no day matches the expression.
        ExtraMissing: the extra ``schedules`` is not installed.

    Example:
        >>> berlin = Cron("30 2 * * *", "Europe/Berlin")
        >>> berlin.next_after(datetime(2026, 3, 28, 12, tzinfo=UTC)).isoformat()  # no 2:30 on March 29
        '2026-03-30T00:30:00+00:00'
    """

    def __init__(self, expression: str, timezone: str) -> None:
        self._zone = zone(timezone)
        self._wall = _parsed(expression)
        if self._wall_from(_SOME_DAY, inclusive=True) is None:
            raise InvalidSchedule(
                f"cron {expression!r} never occurs: no date has such a day and month; correct one of them"
            )

    def first_from(self, instant: datetime) -> datetime | None:
        """The first occurrence at or after an instant; see :class:`Rule`."""
        return self._find(instant, inclusive=True)

    def next_after(self, instant: datetime) -> datetime | None:
        """The first occurrence after an instant; see :class:`Rule`."""
        return self._find(instant, inclusive=False)

    def last_until(self, instant: datetime, since: datetime) -> datetime:
        """The last occurrence at or before an instant; see :class:`Rule`.

        Searches backwards in growing spans, so that it finds at most a few times more than the span it needs.
        """
        span = timedelta(hours=1)
        while True:
            begins_at = max(since, instant - span)
            found = None
            at = self._find(begins_at, inclusive=True)
            while at is not None and at <= instant:
                found = at
                at = self._find(at, inclusive=False)
            if found is not None:
                return found
            if begins_at == since:
                return since
            span *= 4

    def _find(self, instant: datetime, *, inclusive: bool) -> datetime | None:
        begins_at = instant.astimezone(UTC)
        while True:
            offset = self._offset(begins_at)
            wall = self._wall_from(begins_at.replace(tzinfo=None) + offset, inclusive=inclusive)
            if wall is None:
                return None
            found = (wall - offset).replace(tzinfo=UTC)
            change = self._first_change(begins_at, found, offset)
            if change is None:
                return found
            begins_at = change
            inclusive = True

    def _wall_from(self, wall: datetime, *, inclusive: bool) -> datetime | None:
        """The first matching wall time after ``wall``, or at it."""
        minute = wall.replace(second=0, microsecond=0)
        if inclusive and minute == wall:
            minute -= _MINUTE
        self._wall.set_current(minute)
        try:
            found = self._wall.get_next(datetime)
        # The parser searches some decades ahead and then raises this.
        except (ValueError, OverflowError):
            return None
        return found if isinstance(found, datetime) and found.year < _LAST_YEAR else None

    def _offset(self, instant: datetime) -> timedelta:
        offset = instant.astimezone(self._zone).utcoffset()
        assert offset is not None, "a zone of the IANA database always has an offset"
        return offset

    def _first_change(self, after: datetime, until: datetime, offset: timedelta) -> datetime | None:
        """When the zone's offset first differs from ``offset``, in (after, until]."""
        same_at = after
        while same_at < until:
            looked_at = min(same_at + _STRIDE, until)
            if self._offset(looked_at) != offset:
                break
            same_at = looked_at
        else:
            return None
        # Offsets change at whole seconds.
        same = int(same_at.timestamp())
        other = int(looked_at.timestamp())
        while other - same > 1:
            middle = (same + other) // 2
            if self._offset(datetime.fromtimestamp(middle, UTC)) == offset:
                same = middle
            else:
                other = middle
        return datetime.fromtimestamp(other, UTC)


class Every:
    """A fixed interval of absolute time.

    Args:
        every: 1 s to 3660 days.
        anchor: an instant at which it fires; every other occurrence is whole intervals away.

    Raises:
        InvalidSchedule: an interval out of its limits.

    Example:
        >>> Every(timedelta(minutes=2), datetime(2026, 1, 5, tzinfo=UTC)).next_after(
        ...     datetime(2026, 1, 5, 9, 31, tzinfo=UTC)
        ... ).isoformat()
        '2026-01-05T09:32:00+00:00'
    """

    def __init__(self, every: timedelta, anchor: datetime) -> None:
        if not SHORTEST_EVERY <= every <= LONGEST_EVERY:
            raise InvalidSchedule(
                f"every must be 1 second to 3660 days; got {said_span(every)}: give an interval within them"
            )
        self._every = every
        self._anchor = anchor.astimezone(UTC)

    def first_from(self, instant: datetime) -> datetime | None:
        """The first occurrence at or after an instant; see :class:`Rule`."""
        return self._anchor + -((self._anchor - instant) // self._every) * self._every

    def next_after(self, instant: datetime) -> datetime | None:
        """The first occurrence after an instant; see :class:`Rule`."""
        return self._anchor + ((instant - self._anchor) // self._every + 1) * self._every

    def last_until(self, instant: datetime, since: datetime) -> datetime:
        """The last occurrence at or before an instant; see :class:`Rule`."""
        return max(since, self._anchor + (instant - self._anchor) // self._every * self._every)


def zone(name: str) -> ZoneInfo:
    """The time zone of a name.

    Raises:
        InvalidSchedule: the name is not a zone.
        ExtraMissing: neither the machine nor an installed package has a time zone database.
    """
    try:
        return ZoneInfo(name)
    # A name may be unknown, a path outside the database, or a folder in it.
    except (KeyError, ValueError, OSError):
        if not _has_zones():
            raise missing("schedules", "a schedule on a machine without time zones", "tzdata") from None
        raise InvalidSchedule(
            f"timezone {name[:80]!r} is not known: give a name of the IANA database, such as 'Europe/Berlin' "
            "or 'UTC'"
        ) from None


def _has_zones() -> bool:
    """Whether there is a time zone database: every database has this zone."""
    try:
        ZoneInfo("UTC")
    except KeyError:
        return False
    return True


def normal(expression: str) -> str:
    """An expression as it is kept: one space between fields."""
    return " ".join(expression.split())


def _parsed(expression: str) -> croniter:
    shown = repr(expression[:80])
    if len(expression) > LONGEST_CRON:
        raise InvalidSchedule(
            f"cron {shown}... has {len(expression)} characters; the limit is {LONGEST_CRON}: shorten it"
        )
    fields = expression.split()
    if len(fields) == 1 and fields[0].startswith("@"):
        if fields[0].lower() not in _ALIASES:
            raise InvalidSchedule(
                f"cron {shown} is not known: give one of {', '.join(sorted(_ALIASES))}, or five fields"
            )
    elif len(fields) != 5:
        raise InvalidSchedule(
            f"cron {shown} has {len(fields)} fields: give five, {_FIELDS}; for seconds give `every` instead"
        )
    else:
        for field in fields:
            if _FIELD.fullmatch(field) is None or _CHOSEN.fullmatch(field) is not None:
                raise InvalidSchedule(f"cron {shown} has the field {field!r}: give {_FIELDS}")
    with extra("schedules", "a cron expression"):
        from croniter import croniter
    try:
        return croniter(" ".join(fields), _SOME_DAY)
    # The parser raises errors of other kinds for input that it does not foresee.
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise InvalidSchedule(f"cron {shown} is not a cron expression ({error}): give {_FIELDS}") from None
