"""Converts rendered templates to the values that the broker takes.

A template renders text. The broker takes spans of time and instants, and refuses plain numbers for spans
because their unit would be a guess. So a rendered span is text that names its units, and a rendered instant
names its offset. Values that are not text are returned unchanged; the broker checks them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pendulum

from duewheel.store.values.errors import InvalidArgument, InvalidDelayLevel, InvalidInstant
from duewheel.store.values.instants import to_datetime

if TYPE_CHECKING:
    from duewheel.store.values.instants import Instant

STR_OF_TIMEDELTA = re.compile(
    r"(?:(?P<days>-?\d+) days?, )?(?P<hours>\d{1,2}):(?P<minutes>\d\d):(?P<seconds>\d\d(?:\.\d{1,6})?)"
)
WHOLE_NUMBER = re.compile(r"[+-]?\d+")


def as_span(value: timedelta | str | None, name: str = "delay") -> timedelta | None:
    """Return the span of time that ``value`` means.

    Args:
        value: a timedelta; or text, either an ISO 8601 duration such as ``PT15M`` or ``P1DT2H``, or the text
            that ``str`` makes of a timedelta, such as ``0:15:00`` or ``1 day, 2:00:00``; or None. Empty text
            counts as None.
        name: the parameter's name, for the error.

    Raises:
        InvalidArgument: the text has another form. A plain number is refused, because it has no unit.

    Example:
        >>> as_span("PT1M30S")
        datetime.timedelta(seconds=90)
    """
    if not isinstance(value, str):
        return value
    text = value.strip()
    if not text or text == "None":
        return None
    if match := STR_OF_TIMEDELTA.fullmatch(text):
        return timedelta(**{unit: float(number) for unit, number in match.groupdict(default="0").items()})
    if re.fullmatch(r"[Pp].*\d.*", text):
        try:
            duration = pendulum.parse(text.upper())
        except ValueError:
            duration = None
        if isinstance(duration, timedelta):
            return timedelta(days=duration.days, seconds=duration.seconds, microseconds=duration.microseconds)
    raise InvalidArgument(
        f"{name} {value!r} is not a span of time: give a timedelta, an ISO 8601 duration such as PT15M, or "
        "H:MM:SS; a plain number has no unit"
    )


def as_instant(value: Instant | str | None, name: str = "deliver_at") -> Instant | None:
    """Return the instant that ``value`` means.

    Args:
        value: an aware datetime or Unix milliseconds, as they are; or text, either ISO 8601 with an offset,
            or a whole number of Unix milliseconds; or None. Empty text counts as None.
        name: the parameter's name, for the error.

    Raises:
        InvalidInstant: the text has another form or no offset, or is a number that the broker refuses.

    Example:
        >>> as_instant("2022-06-09T19:20:00+08:00")
        datetime.datetime(2022, 6, 9, 19, 20, tzinfo=datetime.timezone(datetime.timedelta(seconds=28800)))
    """
    if not isinstance(value, str):
        return to_datetime(value, name) if type(value) is int else value
    text = value.strip()
    if not text or text == "None":
        return None
    if WHOLE_NUMBER.fullmatch(text):
        return to_datetime(int(text), name)
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        instant = None
    if instant is None or instant.tzinfo is None:
        raise InvalidInstant(
            f"{name} {value!r} is not an instant: give ISO 8601 with an offset, such as "
            "2022-06-09T19:20:00+08:00, or Unix milliseconds"
        )
    return instant


def as_level(value: int | str | None) -> int | None:
    """Return the delay level that ``value`` means: a whole number, also as text, or None. Empty text counts
    as None.

    Raises:
        InvalidDelayLevel: anything else.

    Example:
        >>> as_level("3")
        3
    """
    level: object = value.strip() if isinstance(value, str) else value
    if level in (None, "", "None"):
        return None
    if isinstance(level, str) and WHOLE_NUMBER.fullmatch(level):
        level = int(level)
    if type(level) is not int:
        raise InvalidDelayLevel(f"delay_level {value!r} is not a whole number: give 0 (no delay) or a level")
    return level


def as_body(value: Any) -> Any:
    """Return the body that ``value`` means. Airflow fetches the results of mapped tasks only when they are
    read, so they are read here and become a list.

    Example:
        >>> as_body({"all": range(2)})
        {'all': [0, 1]}
    """
    if isinstance(value, Mapping):
        return {name: as_body(part) for name, part in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray, memoryview)):
        return [as_body(part) for part in value]
    return value


def as_when(
    delay: timedelta | str | None, deliver_at: Instant | str | None, delay_level: int | str | None
) -> dict[str, Any]:
    """The delivery time as templates render it, as keyword arguments of
    :meth:`duewheel.store.broker.Broker.send`.

    Raises:
        InvalidArgument, InvalidInstant, InvalidDelayLevel: a text has another form.

    Example:
        >>> as_when("PT1H", None, None)
        {'delay': datetime.timedelta(seconds=3600), 'deliver_at': None, 'delay_level': None}
    """
    return {
        "delay": as_span(delay),
        "deliver_at": as_instant(deliver_at),
        "delay_level": as_level(delay_level),
    }
