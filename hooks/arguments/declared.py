"""Checks of a DAG author's arguments when the DAG is read.

A mistake that shows as an import error costs a minute; a mistake that shows when the task runs costs a night.
So constructors check all values that are known by then, with the broker's own errors. The value of a
template, or of another task's result, is known only when the task runs, and is checked then.

A check raises InvalidArgument for a value of another type, out of its limits or not among the choices; its
docstring names other errors. Only pure checks of the store are used: reading a DAG file opens no connection.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from duewheel.hooks.arguments.rendered import as_instant, as_level, as_span
from duewheel.store.values import filters
from duewheel.store.values import tags as tag_expressions
from duewheel.store.values.bodies import check_text, properties_to_json, to_bytes
from duewheel.store.values.errors import (
    DueWheelError,
    InvalidArgument,
    InvalidDelayLevel,
    InvalidInstant,
    InvalidKey,
)
from duewheel.store.values.instants import said_span, to_datetime, to_span
from duewheel.store.values.kinds import a_kind
from duewheel.store.values.limits import (
    LONGEST_IDEMPOTENCY_KEY,
    LONGEST_KEY,
    LONGEST_MESSAGE_GROUP,
    LONGEST_SETTING,
    MOST_LEVELS,
)
from duewheel.store.values.messages import OnConflict, named
from duewheel.store.values.names import check_group_name, check_topic_name
from duewheel.store.values.numbers import whole_number

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from duewheel.store.values.instants import Instant

_TEMPLATE_MARKS = ("{{", "{%", "{#")


def is_given_later(value: object) -> bool:
    """Whether a value, or a part of it, is known only when the task runs, such as a template or another
    task's result.

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
    # XComArg and similar classes; their base class in Airflow is not public.
    return hasattr(value, "resolve") and hasattr(value, "iter_references")


def check(value: Any, judge: Callable[[Any], object]) -> None:
    """Call ``judge`` with a value that was given and is known already."""
    if value is not None and not is_given_later(value):
        judge(value)


def check_not_given_later(owner: object, **given: object) -> None:
    """Refuse a template, or another task's result, for an argument that is never rendered.

    Args:
        owner: the operator or trigger, which lists its templated arguments.
        given: its arguments by name.
    """
    templated: Sequence[str] = getattr(owner, "template_fields", ())
    for name, value in given.items():
        if name not in templated and is_given_later(value):
            raise InvalidArgument(
                f"{name} is {value!r}, but {name} of {type(owner).__name__} is not templated: give the value "
                f"itself; templated are {', '.join(templated) or 'none of its arguments'}"
            )


WHAT_NAMES_A_MESSAGE = "Give either message_id, or both topic and key, to name a message."


def check_named_message(message_id: object, topic: object, key: object) -> None:
    """Check the name of a sent message: its id, or topic and key.

    Raises:
        InvalidArgument: neither is given, or both are, or a value cannot be a name.
    """
    if (message_id is None) == (topic is None and key is None) or (topic is None) != (key is None):
        raise InvalidArgument(WHAT_NAMES_A_MESSAGE)
    check(message_id, lambda given: check_text(given, "message_id"))
    if topic is not None:
        check_topic(topic)
    check_key(key)


def check_reading(
    topic: object,
    group: object,
    tags: object = None,
    filter: object = None,  # noqa: A002 -- as the consumer's parameter
) -> None:
    """Check the arguments that select the messages of a group.

    Raises:
        InvalidArgument: the topic or the group is not a valid name.
        InvalidTagExpression: the tags cannot be understood.
        InvalidFilter: the text cannot be a filter; Postgres checks the rest when it is used.
    """
    _required(topic, "topic", check_topic_name)
    _required(group, "group", check_group_name)
    check(tags, tag_expressions.parse)
    check(filter, filters.check_filter)


def check_topic(topic: object) -> None:
    """Check a topic's name."""
    _required(topic, "topic", check_topic_name)


def check_group(group: object) -> None:
    """Check a consumer group's name."""
    _required(group, "group", check_group_name)


def check_span(
    value: object,
    name: str,
    *,
    at_least: timedelta | None = None,
    at_most: timedelta | None = None,
    more_than: timedelta | None = None,
) -> None:
    """Check a span of time."""

    def judge(given: Any) -> None:
        span = as_span(given, name)
        if span is None:
            return
        span = to_span(span, name)
        if at_least is not None and span < at_least:
            raise InvalidArgument(f"{name} must be {said_span(at_least)} or more; got {said_span(span)}")
        if more_than is not None and span <= more_than:
            raise InvalidArgument(f"{name} must be more than {said_span(more_than)}; got {said_span(span)}")
        if at_most is not None and span > at_most:
            raise InvalidArgument(f"{name} must be {said_span(at_most)} or less; got {said_span(span)}")

    check(value, judge)


NAMED_STARTS = ("earliest", "latest")
"""Where a new group may begin, besides an instant."""


def as_start(start: str | Instant) -> str | datetime:
    """Where a new group begins.

    Args:
        start: ``earliest``, ``latest``, or an instant, which may be text in ISO 8601 with its offset.

    Returns:
        The name, or the instant in UTC.

    Raises:
        InvalidArgument: text in another form.
        InvalidInstant: another value that is not an instant.

    Example:
        >>> as_start("2030-01-31T18:30:00+01:00").isoformat()
        '2030-01-31T17:30:00+00:00'
    """
    if isinstance(start, str) and start in NAMED_STARTS:
        return start
    try:
        at = as_instant(start, "start")
        if at is not None:
            return to_datetime(at, "start")
    except InvalidInstant:
        if not isinstance(start, str):
            raise
    raise InvalidArgument(
        f'start must be "earliest", "latest" or an instant; got "{str(start)[:80]}": an instant is an aware '
        "datetime, ISO 8601 with an offset such as 2022-06-09T19:20:00+08:00, or Unix milliseconds"
    )


def check_instant(value: object, name: str) -> None:
    """Check an instant, which may be text.

    Raises:
        InvalidInstant: the value is not an instant.
    """

    def judge(given: Any) -> None:
        instant = as_instant(given, name)
        if instant is not None:
            to_datetime(instant, name)

    check(value, judge)


def check_levels(value: object) -> None:
    """Check the table of a topic's delay levels."""
    if value is None:
        return
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise InvalidArgument(
            f"delay_levels is {a_kind(value)}: give a list of 1 to {MOST_LEVELS} spans of time"
        )
    if not 1 <= len(value) <= MOST_LEVELS:
        raise InvalidArgument(f"delay_levels must have 1 to {MOST_LEVELS} levels; got {len(value)}")
    for place, level in enumerate(value):
        if level is None:
            raise InvalidArgument("a level of delay_levels is null: give a span of time for each")
        check_span(level, f"delay_levels[{place}]", at_least=timedelta(0), at_most=LONGEST_SETTING)


def check_flags(**given: object) -> None:
    """Check arguments that are either True or False; text, even "false", would count as True."""
    for name, value in given.items():
        if not isinstance(value, bool):
            raise InvalidArgument(f"{name} is {value!r}, {a_kind(value)}: give True or False")


MOST_COUNTED = 10_000
"""So many ready messages of a group are counted."""


def check_count(value: object, name: str, *, at_most: int | None = None) -> None:
    """Check a number of things, 1 or more, which may be text, because templates render text."""

    def judge(given: Any) -> None:
        as_count(given, name, at_most=at_most)

    check(value, judge)


def as_count(value: Any, name: str, *, at_most: int | None = None) -> int:
    """A number of things as templates render it: a whole number of 1 or more, or such a number as text.

    Raises:
        InvalidArgument: anything else.
    """
    text = value.strip() if isinstance(value, str) else None
    count = int(text) if text is not None and text.isascii() and text.isdigit() else value
    return whole_number(count, name, at_most)


def check_choice(value: object, name: str, choices: Iterable[str]) -> None:
    """Check a value that is one of a few words."""
    words = tuple(str(choice) for choice in choices)

    def judge(given: Any) -> None:
        if str(given).lower() not in {word.lower() for word in words}:
            raise InvalidArgument(
                f"{name} {given!r} is not known: give one of {', '.join(repr(word) for word in words)}"
            )

    check(value, judge)


def check_callable(value: object, name: str = "python_callable") -> None:
    """Check a function."""
    if not callable(value):
        raise InvalidArgument(f"{name} is {value!r}, {a_kind(value)}: give a function")


def check_key(value: object) -> None:
    """Check the sender's own key of a message.

    Raises:
        InvalidKey: it is empty or too long.
    """

    _limited(value, "key", LONGEST_KEY, InvalidKey)


def check_message(
    *,
    body: object,
    delay: object = None,
    deliver_at: object = None,
    delay_level: object = None,
    key: object = None,
    tag: object = None,
    properties: object = None,
    message_group: object = None,
    idempotency_key: object = None,
    on_conflict: object = "allow",
) -> None:
    """Check the known fields of a message to send.

    Raises:
        InvalidArgument: two instants of delivery are given, a delay is not a span of time or is negative, or
            ``on_conflict`` is unknown.
        InvalidInstant, InvalidDelayLevel, InvalidKey, InvalidTag: as their names say.
        BodyTooLarge, PropertiesTooLarge: as their names say.
    """
    check_when(delay, deliver_at, delay_level)
    check_key(key)
    check(tag, tag_expressions.check_tag)
    _limited(message_group, "message group", LONGEST_MESSAGE_GROUP, InvalidArgument)
    _limited(idempotency_key, "idempotency key", LONGEST_IDEMPOTENCY_KEY, InvalidKey)
    check(on_conflict, lambda given: named(OnConflict, given, "on_conflict"))
    check(body, to_bytes)
    check(properties, properties_to_json)


def check_when(delay: object, deliver_at: object, delay_level: object) -> None:
    """Check when to deliver; errors as in :func:`check_message`."""
    if sum(when is not None for when in (delay, deliver_at, delay_level)) > 1:
        raise InvalidArgument("Give one of delay, deliver_at and delay_level: each sets the delivery time.")
    check_span(delay, "delay", at_least=timedelta(0))
    check_instant(deliver_at, "deliver_at")
    check(delay_level, _judge_level)


def _judge_level(given: Any) -> None:
    level = as_level(given)
    if level is not None and level < 0:
        raise InvalidDelayLevel(f"the delay level must be 0 (not delayed) or more; got {level}")


def _limited(value: object, name: str, at_most: int, error: type[DueWheelError]) -> None:
    def judge(given: Any) -> None:
        check_text(given, name.replace(" ", "_"))
        if not 1 <= len(given) <= at_most:
            raise error(f"the {name} must have 1 to {at_most} characters; got {len(given)}")

    check(value, judge)


def _required(value: object, name: str, judge: Callable[[Any], object]) -> None:
    if value is None:
        raise InvalidArgument(f"{name} is missing: give a str")
    check(value, judge)
