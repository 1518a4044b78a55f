"""The numbers of topics, of groups and of upkeep.

Everything here reads, and is bounded by rows and by time in the database: with ten million waiting messages a
lookup costs as much as with ten. If a bound was reached, the result shows it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from psycopg2.errors import QueryCanceled

from duewheel.store.database.connections import Database
from duewheel.store.operations.reading import checked_limit, limited, read, read_records
from duewheel.store.values.bodies import check_text
from duewheel.store.values.errors import UnknownTopic
from duewheel.store.values.instants import Instant, to_datetime
from duewheel.store.values.messages import MessageType
from duewheel.store.values.records import columns, records

if TYPE_CHECKING:
    from duewheel.store.database.connected import Connected

_NAMES = "select topic from duewheel.topics where topic > %s order by topic limit %s"
_TOPICS_OF_GROUP = """
select distinct topic from duewheel.groups
where concat_ws('/', consumer_group, instance) = %s or consumer_group = %s
order by topic limit %s
"""
_TOPIC_BEFORE = "select max(topic) from duewheel.topics where topic < %s"
#: The groups of so many topics are asked for in one statement.
_TOPICS_AT_ONCE = 100
#: As many if the messages in flight are counted.
_TOPICS_WITH_LEASES_AT_ONCE = 25
#: The groups of so many topics are listed for one group.
_MOST_TOPICS = 1_000


@dataclass(frozen=True, slots=True)
class TopicNumbers:
    """The numbers of a topic; instants in UTC.

    Attributes:
        topic: the topic's name.
        message_type: the type of its messages.
        waiting: messages that are not released yet; recalled ones are among them.
        waiting_is_exact: whether they were counted; else the number is an estimate.
        next_due_at: when the next of them is due.
        released_to: everything due up to here is released.
        stragglers: messages whose transaction committed after their instant had been ticked.
    """

    topic: str
    message_type: MessageType
    waiting: int
    waiting_is_exact: bool
    next_due_at: datetime | None
    released_to: datetime | None
    stragglers: int


@dataclass(frozen=True, slots=True)
class GroupNumbers:
    """The numbers of a consumer group on one topic; instants in UTC.

    Attributes:
        group, topic: the group and the topic.
        ready: messages that are released and not leased yet; counted among the first 10 000 of each queue,
            recalled ones among them.
        oldest_deliver_at: the delivery instant of the oldest of them.
        inflight: messages under a lease without an answer.
        inflight_is_exact: whether all leases of the group were read; else more may be in flight.
        waiting_retry: messages that wait for their next attempt.
        dead: dead letters that were not sent again.
        dropped_soon: how many of them have a retention that ends within a day, or has ended; counted up to
            10 000.
        paused_at: since when the group is paused and receives nothing; None if it is not paused.
        idle_since: since when the group has taken none of its ready messages, if that is at least 15 minutes
            and nothing is in flight; else None, and None while it is paused.
        abandoned_since: since when the group receives nothing, if messages that it has not read are past
            retention; else None, and None while it is paused.
        kept_messages, kept_bytes: these messages, and their size with indexes; estimates above 1 000 in a
            queue.
    """

    group: str
    topic: str
    ready: int
    oldest_deliver_at: datetime | None
    inflight: int
    inflight_is_exact: bool
    waiting_retry: int
    dead: int
    dropped_soon: int
    paused_at: datetime | None
    idle_since: datetime | None
    abandoned_since: datetime | None
    kept_messages: int
    kept_bytes: int


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """How far a group has read a topic; instants in UTC.

    Attributes:
        group, topic: the group and the topic.
        read_to: it has received everything due up to here; None if nothing was released or read yet.
        tags: the tags that it receives, ``*`` for all.
        filter: the predicate over the properties of the messages that it receives; None for no predicate.
    """

    group: str
    topic: str
    read_to: datetime | None
    tags: str
    filter: str | None


@dataclass(frozen=True, slots=True)
class TopicStats(TopicNumbers):
    """A topic with its groups.

    Attributes:
        groups: the consumer groups that read it.
    """

    groups: tuple[GroupNumbers, ...]


@dataclass(frozen=True, slots=True)
class UpkeepHolder:
    """A session or a prepared transaction that has held upkeep up for over an hour.

    Attributes:
        pid: the session's process, for ``pg_terminate_backend``; None for a prepared transaction.
        login, application: the login and the application name of the session.
        state: as in ``pg_stat_activity``, or ``prepared``; None if the schema's owner may not see it.
        since_at: when the transaction began, in UTC, or the session was last active; None as for ``state``.
        gid: the name of a prepared transaction.
        holds: ``transaction``, which has written; ``tables``, ``topic`` or ``upkeep`` for a lock of these.
    """

    pid: int | None
    login: str
    application: str | None
    state: str | None
    since_at: datetime | None
    gid: str | None
    holds: str


@dataclass(frozen=True, slots=True)
class Upkeep:
    """The state of upkeep, which a wheel does once an hour.

    Attributes:
        maintained_at: when it was last done, in UTC; at first, when the broker was made.
        slots_to_seal: past slots in which upkeep still has to search for messages that no tick released.
        slots_past_retention: slots that are past the retention of every topic, and were not dropped yet or
            have messages that a group has not finished.
        messages_to_settle: messages that are to move to their slots; counted up to 10 000.
        held_up_by: the sessions that have held it up for over an hour, the longest first.
    """

    maintained_at: datetime
    slots_to_seal: int
    slots_past_retention: int
    messages_to_settle: int
    held_up_by: tuple[UpkeepHolder, ...]


@dataclass(frozen=True, slots=True)
class Stats:
    """The numbers of a broker.

    Attributes:
        topics: all topics, by name.
        upkeep: when it was last done, and the sessions that hold it up.
    """

    topics: tuple[TopicStats, ...]
    upkeep: Upkeep


_TOPICS = f"select {columns(TopicNumbers)} from duewheel.topic_stats(%s, %s, %s)"
_GROUPS = f"select {columns(GroupNumbers, group='consumer_group')} from duewheel.group_stats(%s, %s)"
#: The longest time of a statement on the groups of some topics.
_STATEMENT_MS = 1_000
#: A broadcasting group has an entry for each instance.
#: Without the messages in flight, which cost a lookup for each running lease.
_GROUPS_WITHOUT_LEASES = _GROUPS.replace("%s)", "%s, 0)")
_PROGRESS = """
select concat_ws('/', consumer_group, instance), topic, read_to, tags, filter::text
from duewheel.groups where topic = any(%s)
"""
_GROUP_NAMES = "select distinct consumer_group from duewheel.groups order by 1 limit %s"
_REWOUND = "select messages, exact from duewheel.count_rewound(%s, %s, %s, %s)"
_UPKEEP = (
    "select maintained_at, slots_to_seal, slots_past_retention, messages_to_settle"
    " from duewheel.upkeep_state(%s)"
)
_MAINTAINED = "select maintained_at from duewheel.upkeep_state(%s)"
_HOLDERS = f"select {columns(UpkeepHolder)} from duewheel.upkeep_holders(%s)"


def upkeep_holders(broker: Connected) -> list[UpkeepHolder]:
    """The sessions that have held upkeep up for over an hour, the longest first."""
    return read_records(broker, UpkeepHolder, "upkeep_holders(%s)", (broker.now(),))


def maintained_at(broker: Connected) -> datetime:
    """When upkeep was last done, in UTC."""
    ((found,),) = read(broker, _MAINTAINED, (broker.now(),))
    return to_datetime(found)


def group_progress(broker: Connected, topics: Sequence[str]) -> list[GroupProgress]:
    """How far the groups on these topics have read them."""
    return records(GroupProgress, read(broker, _PROGRESS, (list(topics),)))


def names(broker: Connected, most: int = 1_000) -> tuple[list[str], list[str]]:
    """The first topics and the first groups, by name."""
    rows = read(broker, _GROUP_NAMES, (most,))
    return topic_names(broker, None, most), [name for (name,) in rows]


def stats(database: Database) -> Stats:
    """The numbers of all topics; see :meth:`duewheel.store.broker.Broker.stats`."""
    groups: dict[str, list[GroupNumbers]] = {}
    for one in records(GroupNumbers, database.read(_GROUPS, (database.now(), None))):
        groups.setdefault(one.topic, []).append(one)
    rows = database.read(_TOPICS, (database.now(), None, None))
    with_groups = ((*row, tuple(groups.get(row[0], ()))) for row in rows)
    topics = tuple(records(TopicStats, with_groups, message_type=MessageType))
    ((maintained_at, to_seal, past_retention, to_settle),) = database.read(_UPKEEP, (database.now(),))
    holders = records(UpkeepHolder, database.read(_HOLDERS, (database.now(),)))
    return Stats(
        topics, Upkeep(to_datetime(maintained_at), to_seal, past_retention, to_settle, tuple(holders))
    )


def topic_page(broker: Connected, after: str | None = None, max_topics: int = 100) -> list[TopicNumbers]:
    """The numbers of the topics whose names follow ``after``, by name."""
    check_text(after, "after", optional=True)
    rows = read(broker, _TOPICS, (broker.now(), after, checked_limit(max_topics)))
    return records(TopicNumbers, rows, message_type=MessageType)


def topic_names(broker: Connected, after: str | None = None, max_topics: int = 100) -> list[str]:
    """The names of the topics that follow ``after``, in the order of :func:`topic_page`."""
    check_text(after, "after", optional=True)
    return [name for (name,) in read(broker, _NAMES, (after or "", checked_limit(max_topics)))]


def group_numbers(broker: Connected, topics: Sequence[str]) -> list[GroupNumbers]:
    """The numbers of the groups on these topics, by group."""
    return records(GroupNumbers, read(broker, _GROUPS, (broker.now(), list(topics))))


def all_group_numbers(broker: Connected, max_ms: int) -> tuple[list[GroupNumbers], str | None]:
    """The numbers of the groups on all topics, without the messages in flight (:func:`counted_groups`).

    Args:
        broker: the broker.
        max_ms: after so many milliseconds no further topic is read. A statement takes a second at most.

    Returns:
        The groups; and the last topic, by name, that was read, or None if all were. The empty string: none
        was.
    """
    ends_at = time.monotonic() + max_ms / 1000
    found: list[GroupNumbers] = []
    last = ""
    with limited(_STATEMENT_MS):
        while True:
            names = topic_names(broker, last, _TOPICS_AT_ONCE)
            if not names:
                return found, None
            try:
                found += records(GroupNumbers, read(broker, _GROUPS_WITHOUT_LEASES, (broker.now(), names)))
            except QueryCanceled:
                return found, last
            if len(names) < _TOPICS_AT_ONCE:
                return found, None
            last = names[-1]
            if time.monotonic() > ends_at:
                return found, last


def group_page(
    broker: Connected, after: str | None, min_groups: int, max_ms: int
) -> tuple[list[GroupNumbers], str | None]:
    """The numbers of the groups on the topics that follow ``after``, with the messages in flight.

    Args:
        broker: the broker.
        after: a topic; None begins with the first one, by name.
        min_groups: topics are read until so many groups are found: most topics may have none.
        max_ms: after so many milliseconds no further topic is read.

    Returns:
        The groups by topic; and the last topic that was read, or None if no topic follows it.
    """
    ends_at = time.monotonic() + max_ms / 1000
    found: list[GroupNumbers] = []
    while True:
        topics = topic_names(broker, after, min_groups)
        found += group_numbers(broker, topics)
        if len(topics) < min_groups:
            return found, None
        after = topics[-1]
        if len(found) >= min_groups or time.monotonic() > ends_at:
            return found, after


def counted_groups(broker: Connected, groups: Iterable[GroupNumbers], max_ms: int) -> list[GroupNumbers]:
    """The present numbers of these groups, with messages in flight, for as many topics as ``max_ms`` allow.

    A group that was deleted meanwhile is left out; a group for which there is no time keeps its numbers.
    """
    ends_at = time.monotonic() + max_ms / 1000
    found = {(one.group, one.topic): one for one in groups}
    try:
        for topics in _portions(list({one.topic: None for one in found.values()})):
            left_ms = int((ends_at - time.monotonic()) * 1000)
            if left_ms <= 0:
                break
            with limited(left_ms):
                numbers = {(one.group, one.topic): one for one in group_numbers(broker, topics)}
            for key in [key for key in found if key[1] in topics]:
                if key in numbers:
                    found[key] = numbers[key]
                else:
                    del found[key]
    except QueryCanceled:
        pass
    return list(found.values())


def topic_numbers(broker: Connected, topic: str) -> TopicNumbers:
    """The numbers of one topic.

    Raises:
        UnknownTopic: no topic has this name.
    """
    check_text(topic, "topic")
    ((before,),) = read(broker, _TOPIC_BEFORE, (topic,))
    found = next(iter(topic_page(broker, before, 1)), None)
    if found is None or found.topic != topic:
        raise UnknownTopic(f'there is no topic "{topic}"')
    return found


def topics_named(
    broker: Connected, part: str, after: str | None = None, max_topics: int = 100
) -> tuple[list[TopicNumbers], str | None]:
    """The topics whose names contain a text, by name, of the 1 000 that follow ``after``.

    Returns:
        The numbers of at most ``max_topics`` of them, and the name to continue after; None at the end.
    """
    check_text(part, "part")
    names = topic_names(broker, after, _MOST_TOPICS)
    matching = [(before, name) for before, name in zip([after, *names], names, strict=False) if part in name][
        : checked_limit(max_topics)
    ]
    looked_to = matching[-1][1] if len(matching) == max_topics else names[-1] if names else None
    is_end = len(names) < _MOST_TOPICS and (not names or looked_to == names[-1])
    # A page after the predecessor of a deleted topic begins with another topic.
    found = [one for before, name in matching for one in topic_page(broker, before, 1) if one.topic == name]
    return found, None if is_end else looked_to


def matching_groups(
    broker: Connected, group: str | None, topic: str | None, max_ms: int
) -> tuple[list[GroupNumbers], str | None]:
    """The numbers of a group on all topics that it reads, of all groups on a topic, or of one group on one.

    Args:
        broker: the broker.
        group: the group; of a broadcasting one, each instance is listed. None is every group.
        topic: the topic; None is the first 1 000 topics of the group, by name.
        max_ms: after so many milliseconds no further topic is read.

    Returns:
        The groups by topic; and the last topic that was read, as in :func:`all_group_numbers`.

    Raises:
        UnknownTopic: no topic has this name.
    """
    check_text(group, "group", optional=True)
    ends_at = time.monotonic() + max_ms / 1000
    if topic is not None:
        topic_numbers(broker, topic)
        topics = [topic]
    else:
        topics = [name for (name,) in read(broker, _TOPICS_OF_GROUP, (group, group, _MOST_TOPICS))]
    found: list[GroupNumbers] = []
    last = ""
    with limited(max_ms):
        for portion in _portions(topics):
            if time.monotonic() > ends_at:
                return found, last
            try:
                numbers = group_numbers(broker, portion)
            except QueryCanceled:
                return found, last
            numbers.sort(key=lambda one: portion.index(one.topic))
            found += [one for one in numbers if group in (None, one.group, one.group.partition("/")[0])]
            last = portion[-1]
    return found, None


def _portions(topics: Sequence[str]) -> Iterator[Sequence[str]]:
    """The topics of one statement each that counts messages in flight."""
    for first in range(0, len(topics), _TOPICS_WITH_LEASES_AT_ONCE):
        yield topics[first : first + _TOPICS_WITH_LEASES_AT_ONCE]


def count_rewound(broker: Connected, group: str, topic: str, to: Instant | str) -> tuple[int, bool]:
    """How many messages a rewind would deliver again.

    Args:
        broker: the broker.
        group, topic, to: see :meth:`duewheel.store.broker.Broker.rewind`.

    Returns:
        The number, and whether it is complete: counting stops above 100 000.

    Raises:
        UnknownTopic, UnknownGroup: no such topic or group.
        InvalidInstant: not an instant.
    """
    check_text(group, "group")
    check_text(topic, "topic")
    instant, start = (None, to) if isinstance(to, str) else (to_datetime(to, "to"), None)
    ((messages, exact),) = read(broker, _REWOUND, (group, topic, instant, start))
    return messages, exact


def by_dead_letters(groups: Iterable[GroupNumbers]) -> list[GroupNumbers]:
    """The groups with the most dead letters first."""
    return sorted(groups, key=lambda one: (-one.dead, -one.ready, -one.waiting_retry, one.group, one.topic))


def by_lag(groups: Iterable[GroupNumbers]) -> list[GroupNumbers]:
    """The groups with the most ready messages first."""
    return sorted(by_dead_letters(groups), key=lambda one: -one.ready)
