"""Topics: the addresses of messages, with settings for senders and the wheel."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from duewheel.store.database.connected import Connected
from duewheel.store.operations.reading import read
from duewheel.store.values.bodies import check_text
from duewheel.store.values.errors import InvalidArgument
from duewheel.store.values.instants import microseconds_to_span, to_span
from duewheel.store.values.kinds import a_kind
from duewheel.store.values.messages import MessageType, OutOfRange, named
from duewheel.store.values.records import records

if TYPE_CHECKING:
    from duewheel.store.database.connections import Rows
    from duewheel.store.values.topics import Topic

_CREATE = """
select duewheel.create_topic(%s, message_type => %s, queues => %s, max_delay => %s, out_of_range => %s,
    granularity => %s, retention => %s, delay_levels => %s::interval[], dead_letter_retention => %s)
"""

_UPDATE = """
select duewheel.update_topic(%s, max_delay => %s, out_of_range => %s, granularity => %s, retention => %s,
    delay_levels => %s::interval[], dead_letter_retention => %s)
"""

_TOPICS = """
select topic, message_type, queues, (extract(epoch from max_delay) * 1000000)::bigint, out_of_range,
    (extract(epoch from granularity) * 1000000)::bigint, (extract(epoch from retention) * 1000000)::bigint,
    created_at, array(select (extract(epoch from l) * 1000000)::bigint from unnest(delay_levels) l),
    (extract(epoch from dead_letter_retention) * 1000000)::bigint
from duewheel.topics
where %s::text is null or topic = %s
order by topic
"""


class Topics(Connected):
    """The operations on topics."""

    def create_topic(
        self,
        name: str,
        *,
        message_type: MessageType | str = MessageType.DELAY,
        queues: int = 4,
        max_delay: timedelta = timedelta(hours=24),
        out_of_range: OutOfRange | str = OutOfRange.REJECT,
        granularity: timedelta | None = None,
        retention: timedelta = timedelta(hours=72),
        delay_levels: Sequence[timedelta] | None = None,
        dead_letter_retention: timedelta = timedelta(days=30),
    ) -> None:
        """Create a topic; the same topic with the same settings may be created again.

        Args:
            name: 1 to 127 letters, digits, dots, hyphens and underscores.
            message_type: DELAY, NORMAL or FIFO. Cannot be changed later.
            queues: how many consumers of one group read in parallel, 1 to 64. Cannot be changed later.
            max_delay: the longest delay, up to 3660 days.
            out_of_range: the treatment of a longer delay: "reject" refuses it, "deliver" delivers at once.
            granularity: the shortest time between two ticks (releases) of a busy topic, 1 ms to 1 h. None is
                15 ms for a new topic, and the present value for an existing one.
            retention: how long a message is kept, counted from its delivery.
            delay_levels: the delay of level 1, of level 2 and so on, 1 to 64 of them, each up to 3660 days;
                None is RocketMQ's eighteen, 1 s to 2 h. A level over ``max_delay`` is out of range when a
                message asks for it.
            dead_letter_retention: how long a group's dead letter is kept, counted from when it became one.

        Raises:
            TopicExists: the topic exists with other settings.
            InvalidArgument: a setting out of its limits.

        Example::

            broker.create_topic("orders.timeout", message_type="DELAY", max_delay=timedelta(days=7))
        """
        check_text(name, "name")
        self._database.rows(
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
                to_span(dead_letter_retention, "dead_letter_retention"),
            ),
        )

    def update_topic(
        self,
        name: str,
        *,
        max_delay: timedelta | None = None,
        out_of_range: OutOfRange | str | None = None,
        granularity: timedelta | None = None,
        retention: timedelta | None = None,
        delay_levels: Sequence[timedelta] | None = None,
        dead_letter_retention: timedelta | None = None,
    ) -> None:
        """Change settings of a topic; settings that are not given keep their values.

        Args:
            name: the topic.
            max_delay, out_of_range, granularity, retention, delay_levels, dead_letter_retention: see
                :meth:`create_topic`; waiting messages keep their instants.

        Raises:
            UnknownTopic: no topic has this name.
            InvalidArgument: a setting out of its limits.
        """
        check_text(name, "name")
        self._database.rows(
            _UPDATE,
            (
                name,
                None if max_delay is None else to_span(max_delay, "max_delay"),
                None if out_of_range is None else named(OutOfRange, out_of_range, "out_of_range").value,
                None if granularity is None else to_span(granularity, "granularity"),
                None if retention is None else to_span(retention, "retention"),
                _levels(delay_levels),
                None
                if dead_letter_retention is None
                else to_span(dead_letter_retention, "dead_letter_retention"),
            ),
        )

    def delete_topic(self, name: str) -> None:
        """Delete a topic with all its messages and the subscriptions to it.

        Raises:
            UnknownTopic: no topic has this name.
        """
        check_text(name, "name")
        self._database.rows("select duewheel.delete_topic(%s)", (name,))

    def topics(self) -> list[Topic]:
        """All topics with their settings, by name."""
        return _topics(self._database.read(_TOPICS, (None, None)))


def find_topic(broker: Connected, name: str) -> Topic | None:
    """A topic with its settings; None if no topic has this name."""
    check_text(name, "name")
    return next(iter(_topics(read(broker, _TOPICS, (name, name)))), None)


def _topics(rows: Rows) -> list[Topic]:
    from duewheel.store.values.topics import Topic

    return records(
        Topic,
        rows,
        message_type=MessageType,
        max_delay=microseconds_to_span,
        out_of_range=OutOfRange,
        granularity=microseconds_to_span,
        retention=microseconds_to_span,
        delay_levels=lambda levels: tuple(map(microseconds_to_span, levels)),
        dead_letter_retention=microseconds_to_span,
    )


def _levels(delay_levels: Sequence[timedelta] | None) -> list[timedelta] | None:
    if delay_levels is None:
        return None
    given: object = delay_levels
    if isinstance(given, (str, bytes)) or not isinstance(given, Sequence):
        raise InvalidArgument(f"delay_levels is {a_kind(given)}: give a sequence of 1 to 64 timedeltas")
    return [to_span(level, f"delay_levels[{index}]") for index, level in enumerate(delay_levels)]


def _count(queues: int) -> int:
    if type(queues) is not int or abs(queues) > 2**31 - 1:
        raise InvalidArgument(f"queues is {queues!r}: give a whole number from 1 to 64")
    return queues
