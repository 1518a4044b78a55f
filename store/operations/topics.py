"""Topics: the addresses of messages, with the settings that senders and the wheel go by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from duewheel.store.database.connections import Database
from duewheel.store.values.bodies import check_text
from duewheel.store.values.errors import InvalidArgument
from duewheel.store.values.instants import to_datetime, to_span
from duewheel.store.values.messages import MessageType, OutOfRange, named

_CREATE = """
select duewheel.create_topic(%s, message_type => %s, queues => %s, max_delay => %s, out_of_range => %s,
    granularity => %s, retention => %s, delay_levels => %s::interval[])
"""

_UPDATE = """
select duewheel.update_topic(%s, max_delay => %s, out_of_range => %s, granularity => %s, retention => %s,
    delay_levels => %s::interval[])
"""

_TOPICS = """
select topic, message_type, queues, (extract(epoch from max_delay) * 1000000)::bigint, out_of_range,
    (extract(epoch from granularity) * 1000000)::bigint, (extract(epoch from retention) * 1000000)::bigint,
    created_at, array(select (extract(epoch from l) * 1000000)::bigint from unnest(delay_levels) l)
from duewheel.topics
order by topic
"""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic and its settings.

    Attributes:
        name: 1 to 127 letters, digits, dots, hyphens and underscores.
        message_type: the type of its messages.
        queues: how many consumers of one group can read in parallel.
        max_delay: the longest delay.
        out_of_range: the treatment of a longer delay.
        granularity: the shortest time between two ticks (releases) of a busy topic.
        retention: how long a message is kept, counted from its delivery.
        created_at: when it was made, in UTC.
        delay_levels: the delay of level 1, of level 2 and so on.
    """

    name: str
    message_type: MessageType
    queues: int
    max_delay: timedelta
    out_of_range: OutOfRange
    granularity: timedelta
    retention: timedelta
    created_at: datetime
    delay_levels: tuple[timedelta, ...]


def create_topic(
    database: Database,
    name: str,
    *,
    message_type: MessageType | str,
    queues: int,
    max_delay: timedelta,
    out_of_range: OutOfRange | str,
    granularity: timedelta | None,
    retention: timedelta,
    delay_levels: Sequence[timedelta] | None,
) -> None:
    """Make a topic; see :meth:`duewheel.store.broker.Broker.create_topic`."""
    check_text(name, "name")
    database.rows(
        _CREATE,
        (
            name,
            named(MessageType, message_type, "message_type").value,
            _count(queues),
            to_span(max_delay, "max_delay"),
            named(OutOfRange, out_of_range, "out_of_range").value,
            None if granularity is None else to_span(granularity, "granularity"),
            to_span(retention, "retention"),
            _levels(delay_levels),
        ),
    )


def update_topic(
    database: Database,
    name: str,
    *,
    max_delay: timedelta | None,
    out_of_range: OutOfRange | str | None,
    granularity: timedelta | None,
    retention: timedelta | None,
    delay_levels: Sequence[timedelta] | None,
) -> None:
    """Change a topic's settings; see :meth:`duewheel.store.broker.Broker.update_topic`."""
    check_text(name, "name")
    database.rows(
        _UPDATE,
        (
            name,
            None if max_delay is None else to_span(max_delay, "max_delay"),
            None if out_of_range is None else named(OutOfRange, out_of_range, "out_of_range").value,
            None if granularity is None else to_span(granularity, "granularity"),
            None if retention is None else to_span(retention, "retention"),
            _levels(delay_levels),
        ),
    )


def delete_topic(database: Database, name: str) -> None:
    """Delete a topic; see :meth:`duewheel.store.broker.Broker.delete_topic`."""
    check_text(name, "name")
    database.rows("select duewheel.delete_topic(%s)", (name,))


def topics(database: Database) -> list[Topic]:
    """All topics by name; see :meth:`duewheel.store.broker.Broker.topics`."""
    return [
        Topic(
            name,
            MessageType(message_type),
            queues,
            timedelta(microseconds=max_delay),
            OutOfRange(out_of_range),
            timedelta(microseconds=granularity),
            timedelta(microseconds=retention),
            to_datetime(created_at),
            tuple(timedelta(microseconds=level) for level in levels),
        )
        for (
            name,
            message_type,
            queues,
            max_delay,
            out_of_range,
            granularity,
            retention,
            created_at,
            levels,
        ) in database.read(_TOPICS, ())
    ]


def _levels(delay_levels: Sequence[timedelta] | None) -> list[timedelta] | None:
    if delay_levels is None:
        return None
    given: object = delay_levels
    if isinstance(given, (str, bytes)) or not isinstance(given, Sequence):
        raise InvalidArgument(
            f"delay_levels is a {type(given).__name__}: give a sequence of 1 to 64 timedeltas"
        )
    return [to_span(level, f"delay_levels[{index}]") for index, level in enumerate(delay_levels)]


def _count(queues: int) -> int:
    if type(queues) is not int or abs(queues) > 2**31 - 1:
        raise InvalidArgument(f"queues is {queues!r}: give a whole number from 1 to 64")
    return queues
