"""The three ways to say when a message is due: a delay, an instant or a delay level."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from duewheel.store.values.errors import InvalidArgument
from duewheel.store.values.instants import to_datetime, to_span
from duewheel.store.values.kinds import a_kind

# Longer spans are out of range for every topic; much longer ones cannot be added to an instant in Postgres.
_LONGEST_DELAY = timedelta(days=4000)
_SHORTEST_DELAY = -_LONGEST_DELAY
# The delay level is an int4 to the database; whatever is above the last level counts as the last.
_HIGHEST_LEVEL = 2**31 - 1


def when(delay: Any, deliver_at: Any, level: object) -> tuple[timedelta | None, datetime | None, int | None]:
    """Delay, instant and level as Postgres can take them."""
    if level is not None:
        if type(level) is not int:
            raise InvalidArgument(
                f"delay_level is {a_kind(level)}: give a whole number, 0 for no delay, 1 for the first level"
            )
        level = max(-_HIGHEST_LEVEL - 1, min(level, _HIGHEST_LEVEL))
    return (
        None if delay is None else bounded(delay),
        None if deliver_at is None else to_datetime(deliver_at),
        level,
    )


def bounded(delay: timedelta) -> timedelta:
    """The delay, or the longest one that Postgres can add to an instant, which every topic refuses."""
    span = to_span(delay)
    if _SHORTEST_DELAY <= span <= _LONGEST_DELAY:
        return span
    return _LONGEST_DELAY if span > _LONGEST_DELAY else _SHORTEST_DELAY
