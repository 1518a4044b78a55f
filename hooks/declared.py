"""What a DAG author wrote, judged when the DAG is read.

A mistake that shows as an import error costs a minute; one that shows when the task runs costs a night. So
constructors judge all that is known by then, in the words of the broker. What a template or another task
gives is known only when the task runs, and is judged there.

Only pure checks of the store are used: reading a DAG file opens no connection.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from duewheel.hooks.rendered import as_instant, as_level, as_span
from duewheel.store import filters
from duewheel.store import tags as tag_expressions
from duewheel.store.bodies import properties_to_json, to_bytes
from duewheel.store.errors import InvalidArgument, InvalidDelayLevel, InvalidKey
from duewheel.store.instants import to_datetime, to_span
from duewheel.store.messages import OnConflict, named
from duewheel.store.names import check_group_name, check_topic_name

if TYPE_CHECKING:
    from collections.abc import Callable

SHORTEST_INVISIBLE, LONGEST_INVISIBLE = timedelta(seconds=1), timedelta(hours=12)
LONGEST_WAIT = timedelta(seconds=30)
MOST_RECEIVED = 10_000
"""The limits of a receive, as ``duewheel.store.consumer`` has them."""
MOST_QUEUES = 64
LONGEST_SETTING = timedelta(days=3660)
"""The limits of a topic's settings."""

_TEMPLATE_MARKS = ("{{", "{%", "{#")


def is_given_later(value: object) -> bool:
    """Whether a value, or a part of it, is known only when the task runs: a template, or what another task
    returns.

    Example:
        >>> is_given_later("order-{{ params.order }}"), is_given_later("order-4711")
        (True, False)
    """
    if isinstance(value, str):
        return any(mark in value for mark in _TEMPLATE_MARKS)
    if isinstance(value, Mapping):
        return any(is_given_later(part) for pair in value.items() for part in pair)
    if isinstance(value, (list, tuple, set)):
        return any(is_given_later(part) for part in value)
    # XComArg and its like; a class of Airflow's own stands behind them, which is not public.
    return hasattr(value, "resolve") and hasattr(value, "iter_references")


def check(value: Any, judge: Callable[[Any], object]) -> None:
    """Let ``judge`` look at a value that was given and is known already."""
    if value is not None and not is_given_later(value):
        judge(value)


def check_reading(topic: object, group: object, tags: object = "*", filter: object = None) -> None:  # noqa: A002 -- the name
    """Judge what names the messages of a group.

    Raises:
        InvalidArgument: what is given as topic or group is no name.
        InvalidTagExpression, InvalidFilter: the tags or the filter cannot be understood.
    """
    _required(topic, "topic", check_topic_name)
    _required(group, "group", check_group_name)
    _required(tags, "tags", tag_expressions.parse)
    check(filter, filters.to_jsonpath)


def check_topic(topic: object) -> None:
    """Judge a topic's name."""
    _required(topic, "topic", check_topic_name)


def check_span(
    value: object,
    name: str,
    *,
    at_least: timedelta | None = None,
    at_most: timedelta | None = None,
    more_than: timedelta | None = None,
) -> None:
    """Judge a span of time.

    Raises:
        InvalidArgument: it is none, such as a plain number, whose unit would be a guess; or it is out of its
            limits.
    """

    def judge(given: Any) -> None:
        span = as_span(given, name)
        if span is None:
            return
        span = to_span(span, name)
        if at_least is not None and span < at_least:
            raise InvalidArgument(f"{name} is {span}, the limit is {at_least} or more")
        if more_than is not None and span <= more_than:
            raise InvalidArgument(f"{name} is {span}, the limit is more than {more_than}")
        if at_most is not None and span > at_most:
            raise InvalidArgument(f"{name} is {span}, the limit is {at_most} or less")

    check(value, judge)


def check_count(value: object, name: str, *, at_most: int | None = None) -> None:
    """Judge a number of things, 1 or more; as text too, since templates render text.

    Raises:
        InvalidArgument: it is no whole number, or out of its limits.
    """

    def judge(given: Any) -> None:
        as_count(given, name, at_most=at_most)

    check(value, judge)


def as_count(value: Any, name: str, *, at_most: int | None = None) -> int:
    """A number of things as templates render it: a whole number from 1 on, or such a number as text.

    Raises:
        InvalidArgument: anything else.
    """
    text = value.strip() if isinstance(value, str) else None
    count = int(text) if text is not None and text.isascii() and text.isdigit() else value
    if type(count) is not int or count < 1 or (at_most is not None and count > at_most):
        limit = "1 or more" if at_most is None else f"1 to {at_most}"
        raise InvalidArgument(f"{name} is {value!r}, the limit is {limit}: give a whole number")
    return count


def check_choice(value: object, name: str, choices: Iterable[str]) -> None:
    """Judge a value that is one of a few words.

    Raises:
        InvalidArgument: it is none of them.
    """
    words = tuple(str(choice) for choice in choices)

    def judge(given: Any) -> None:
        if str(given).lower() not in {word.lower() for word in words}:
            raise InvalidArgument(
                f"{name} {given!r} is not known: give one of {', '.join(repr(word) for word in words)}"
            )

    check(value, judge)


def check_callable(value: object, name: str = "python_callable") -> None:
    """Judge a function.

    Raises:
        InvalidArgument: it cannot be called.
    """
    if not callable(value):
        raise InvalidArgument(f"{name} is {value!r}, a {type(value).__name__}: give a function")


def check_key(value: object) -> None:
    """Judge the sender's own key of a message.

    Raises:
        InvalidKey: it is empty or too long.
    """

    def judge(given: Any) -> None:
        if not isinstance(given, str):
            raise InvalidArgument(f"key is a {type(given).__name__}: give a str")
        if not 1 <= len(given) <= 255:
            raise InvalidKey(f"the key has {len(given)} characters; the limit is 1 to 255")

    check(value, judge)


def check_message(
    *,
    body: object,
    delay: object = None,
    deliver_at: object = None,
    delay_level: object = None,
    key: object = None,
    properties: object = None,
    on_conflict: object = "allow",
) -> None:
    """Judge what is known of a message to send.

    Raises:
        InvalidArgument: two instants of delivery, a delay that is no span of time or negative, or an
            ``on_conflict`` that is not known.
        InvalidInstant, InvalidDelayLevel, InvalidKey: as their names say.
        BodyTooLarge, PropertiesTooLarge: as their names say.
    """
    check_when(delay, deliver_at, delay_level)
    check_key(key)
    check(on_conflict, lambda given: named(OnConflict, given, "on_conflict"))
    check(body, to_bytes)
    check(properties, properties_to_json)


def check_when(delay: object, deliver_at: object, delay_level: object) -> None:
    """Judge when to deliver; errors as in :func:`check_message`."""
    if sum(when is not None for when in (delay, deliver_at, delay_level)) > 1:
        raise InvalidArgument("Give one of delay, deliver_at and delay_level: each says when to deliver.")
    check_span(delay, "delay", at_least=timedelta(0))
    check(deliver_at, _judge_instant)
    check(delay_level, _judge_level)


def _judge_instant(given: Any) -> None:
    instant = as_instant(given)
    if instant is not None:
        to_datetime(instant)


def _judge_level(given: Any) -> None:
    level = as_level(given)
    if level is None:
        return
    if type(level) is not int:
        raise InvalidDelayLevel(f"delay_level is a {type(level).__name__}: give 0 (no delay) to 18, see L01")
    if level < 0:
        raise InvalidDelayLevel(f"the delay level is {level}; the limit is 0 (not delayed) or more")


def _required(value: object, name: str, judge: Callable[[Any], object]) -> None:
    if value is None:
        raise InvalidArgument(f"{name} is missing: give a str")
    check(value, judge)
