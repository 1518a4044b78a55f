"""Instants and spans of time, as callers give them and as the database takes them.

An instant becomes an aware ``datetime`` in UTC with microseconds. It may be given as an aware datetime, a
pendulum instant, or an ``int`` of Unix milliseconds. A datetime without a time zone is refused rather than
guessed at, because a guess would be wrong by hours on some machine. A span is a ``timedelta``; plain numbers
are refused because half of the world means seconds by them, the other half milliseconds.

Postgres keeps whole microseconds, so a datetime and the integer of :func:`to_microseconds` are equivalent.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from duewheel.store.values.errors import InvalidArgument, InvalidInstant
from duewheel.store.values.kinds import a_kind

#: The types that callers may give as an instant.
Instant = datetime | int

#: A smaller number of Unix milliseconds is an instant before March 1973, which is never meant. As Unix
#: seconds, smaller numbers reach to the year 5138.
FEWEST_MILLISECONDS = 10**11
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ADVICE = (
    "give an aware datetime such as datetime.now(timezone.utc), a pendulum instant, "
    "or an int of Unix milliseconds"
)


def to_datetime(value: Instant, name: str = "deliver_at") -> datetime:
    """The instant as a plain ``datetime`` in UTC.

    Args:
        value: an aware datetime (a pendulum instant is one) or Unix milliseconds.
        name: the parameter's name, for the error.

    Raises:
        InvalidInstant: the datetime has no time zone, the number is an instant before March 1973, as Unix
            seconds would be, or the value is out of range or of another type.

    Example:
        >>> to_datetime(1654773600000)
        datetime.datetime(2022, 6, 9, 11, 20, tzinfo=datetime.timezone.utc)
    """
    return from_microseconds(to_microseconds(value, name))


def to_microseconds(value: Instant, name: str = "deliver_at") -> int:
    """The instant as whole microseconds since 1970; inputs and errors as in :func:`to_datetime`."""
    if isinstance(value, datetime):
        try:
            since = _minus(value, EPOCH)
        except TypeError:
            raise InvalidInstant(
                f"{name} {value!s} has no time zone, so it is not an instant: {_ADVICE}"
            ) from None
        return (since.days * 86400 + since.seconds) * 1_000_000 + since.microseconds
    if type(value) is int:
        microseconds = value * 1000
        if abs(value) < FEWEST_MILLISECONDS:
            raise InvalidInstant(
                f"{name} {value} is {from_microseconds(microseconds):%Y-%m-%d} as Unix milliseconds: "
                f"give {microseconds} if these are Unix seconds, or an aware datetime"
            )
        if not _FIRST <= microseconds <= _LAST:
            raise InvalidInstant(
                f"{name} {value} is not within the years 1 to 9999 as Unix milliseconds: {_ADVICE}"
            )
        return microseconds
    raise InvalidInstant(f"{name} is {a_kind(value)}, not an instant: {_ADVICE}")


def from_microseconds(microseconds: int) -> datetime:
    """The instant of whole microseconds since 1970-01-01 UTC.

    Raises:
        InvalidInstant: before the year 1 or after 9999 in UTC.
    """
    try:
        return EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        raise InvalidInstant(f"the instant is not within the years 1 to 9999 in UTC: {_ADVICE}") from None


def to_span(value: timedelta, name: str = "delay") -> timedelta:
    """The span as a plain ``timedelta`` (a pendulum duration is one).

    Raises:
        InvalidArgument: another type; a plain number is refused because its unit would be a guess.
    """
    if not isinstance(value, timedelta):
        raise InvalidArgument(
            f"{name} is {a_kind(value)}, not a span of time: give a timedelta, such as timedelta(minutes=30)"
        )
    if type(value) is timedelta:
        return value
    # Subclasses may count months in separate fields; they represent what timedelta's plain arithmetic gives.
    return timedelta(microseconds=span_to_microseconds(value))


_UNITS = (
    ("day", timedelta(days=1)),
    ("h", timedelta(hours=1)),
    ("min", timedelta(minutes=1)),
    ("s", timedelta(seconds=1)),
    ("ms", timedelta(milliseconds=1)),
    ("us", timedelta(microseconds=1)),
)


def said_span(span: timedelta) -> str:
    """A span in words, as errors and logs have it.

    Example:
        >>> said_span(timedelta(minutes=-90)), said_span(timedelta(days=30)), said_span(timedelta(seconds=2))
        ('-1 h 30 min', '30 days', '2 s')
    """
    if span < timedelta(0):
        return f"-{said_span(-span)}"
    parts = []
    for unit, length in _UNITS:
        count, span = divmod(span, length)
        if count:
            parts.append(f"{count} {unit}" + "s" * (unit == "day" and count > 1))
    return " ".join(parts) or "0 s"


def span_to_microseconds(value: timedelta) -> int:
    """A span in whole microseconds."""
    return _divided(value, _MICROSECOND)


def microseconds_to_span(microseconds: int) -> timedelta:
    """A span of whole microseconds: the driver reads an interval by the session's ``intervalstyle``."""
    return timedelta(microseconds=microseconds)


_MICROSECOND = timedelta(microseconds=1)
# The methods of the plain types: subclasses (pendulum's) override them with slower ones that answer in other
# types.
_minus: Callable[[datetime, datetime], timedelta] = datetime.__sub__
_divided: Callable[[timedelta, timedelta], int] = timedelta.__floordiv__
_FIRST = (datetime.min.replace(tzinfo=UTC) - EPOCH) // _MICROSECOND
_LAST = (datetime.max.replace(tzinfo=UTC) - EPOCH) // _MICROSECOND
