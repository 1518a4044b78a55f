"""Numbers that callers give, checked in one way."""

from __future__ import annotations

from typing import Any

from duewheel.store.values.errors import InvalidArgument
from duewheel.store.values.limits import FASTEST_PER_SECOND, SLOWEST_PER_SECOND


def whole_number(
    value: Any, name: str, at_most: int | None = None, advice: str = "give a whole number"
) -> int:
    """A whole number of 1 or more.

    Args:
        value: the number.
        name: the parameter's name, for the error.
        at_most: its limit; None: none.
        advice: what to do, for the error.

    Raises:
        InvalidArgument: another type, or out of its limits.
    """
    if type(value) is not int or value < 1 or (at_most is not None and value > at_most):
        limit = "1 or more" if at_most is None else f"1 to {at_most}"
        raise InvalidArgument(f"{name} must be {limit}; got {value!r}: {advice}")
    return value


def as_rate(per_second: Any) -> float | None:
    """How many messages are sent or handed out in a second; None is no limit.

    Raises:
        InvalidArgument: no number, or out of its limits.
    """
    if per_second is None:
        return None
    slowest, fastest = SLOWEST_PER_SECOND, FASTEST_PER_SECOND
    if type(per_second) not in (int, float) or not slowest <= per_second <= fastest:
        raise InvalidArgument(
            f"per_second must be {slowest} to {fastest} messages in a second; got {per_second!r}: "
            "give a number within these limits, or None for no pause"
        )
    return float(per_second)


def counted(number: int, noun: str, nouns: str | None = None) -> str:
    """Return a number with its noun: `1 message`, `2 000 messages`, `2 retries`."""
    return f"{number:,}".replace(",", " ") + f" {noun if number == 1 else nouns or noun + 's'}"
