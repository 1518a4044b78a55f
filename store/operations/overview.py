"""Present and near-future work: due messages by time, lateness, answers, wheels, consumers and their leases.

Everything here reads, and is bounded by rows and by time in the database: with ten million waiting messages a
lookup costs as much as with ten. If a bound was reached, the result shows it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from duewheel.store.operations.reading import checked_limit, read, read_records
from duewheel.store.values.bodies import check_text
from duewheel.store.values.instants import to_datetime
from duewheel.store.values.records import columns, records
from duewheel.store.values.stored_messages import ListedMessage

if TYPE_CHECKING:
    from duewheel.store.database.connected import Connected

_NOW = "select pg_catalog.clock_timestamp()"
_DUE = """
select topic_name, step_number, messages, exact from duewheel.due_histogram(
    %s, %s, %s, %s, max_ms => %s, max_counted => %s)
"""
_HOUR_LATENESS = """
select topic_name, p99 from duewheel.release_lateness(%s, 10, until_at => %s, max_ms => %s)
"""
_EXPIRED = "select consumer_group, topic, leases from duewheel.expired_between(%s, %s, 1000)"
#: The number of rows in a list that has no pages.
_MOST_LISTED: Final = 200
_STILL_WAITING = f"""
select w.id, {columns(ListedMessage)}
from unnest(%s::text[]) w (id) cross join lateral duewheel.find(w.id) f
where not f.recalled and not f.released
order by f.deliver_at
"""
_WAITING = "select waiting, exact from duewheel.waiting_messages(%s, %s)"


@dataclass(frozen=True, slots=True)
class DueStep:
    """The messages of one topic that are due within one step of time.

    Attributes:
        topic: the topic's name.
        step: which step, from 0.
        messages: how many, without recalled ones.
        exact: whether they were counted; else the number is an estimate.
    """

    topic: str
    step: int
    messages: int
    exact: bool


@dataclass(frozen=True, slots=True)
class DueHistogram:
    """The number of due messages by step of time.

    Attributes:
        from_at: the beginning of the first step, in UTC.
        step: the length of each step.
        steps: how many there are.
        due: the steps that hold messages, by topic and step.
        counted_steps: in how many steps, from the first, all messages are counted or estimated. There are
            fewer if time ran out before every topic was counted; of many topics all or none.
    """

    from_at: datetime
    step: timedelta
    steps: int
    due: tuple[DueStep, ...]
    counted_steps: int


@dataclass(frozen=True, slots=True)
class FlowStep:
    """The work of all groups within one step of time.

    Attributes:
        step: which step, from 0.
        received: messages that were leased; each attempt counts.
        acked: messages whose work was done.
        failed: messages that failed, or whose lease ended without an answer.
    """

    step: int
    received: int
    acked: int
    failed: int


@dataclass(frozen=True, slots=True)
class TopicLateness:
    """How late the newest ticks of a topic were.

    Attributes:
        topic: the topic's name.
        ticks: how many ticks were looked at.
        p50, p99: by how much the first message that a tick released was late.
        newest_at: when the newest of them was made, in UTC.
        by_wheel: whether a wheel made one of them; else receivers made all.
    """

    topic: str
    ticks: int
    p50: timedelta
    p99: timedelta
    newest_at: datetime
    by_wheel: bool


@dataclass(frozen=True, slots=True)
class HourLateness:
    """How late the newest ticks of a topic were within an hour.

    Attributes:
        topic: the topic's name.
        hour: which hour, from 0.
        p99: as of :class:`TopicLateness`.
    """

    topic: str
    hour: int
    p99: timedelta


@dataclass(frozen=True, slots=True)
class TurningWheel:
    """A wheel that is connected.

    Attributes:
        name: the machine and the process it turns in, as ``HOST:PID``.
        login: the database user.
        client_address: the machine; None through a Unix socket, or if this login may not see it.
        connections: how many sessions it has.
        started_at, active_at: when the oldest session began and the newest statement ended, in UTC.
    """

    name: str
    login: str
    client_address: str | None
    connections: int
    started_at: datetime | None
    active_at: datetime | None


@dataclass(frozen=True, slots=True)
class WaitingConsumer:
    """A consumer that waits for messages, such as a task that lingers or a program.

    Attributes:
        topic, group: the topic and the group it waits for.
        consumer: its name: of a task its DAG, run and task, as far as there is room; of a program its own
            name, or its machine and process.
        login: the database user.
        client_address: the machine; None through a Unix socket, or if this login may not see it.
        started_at: since when it has listened, in UTC.
    """

    topic: str
    group: str
    consumer: str
    login: str
    client_address: str | None
    started_at: datetime | None


@dataclass(frozen=True, slots=True)
class WatchedGroup:
    """The state of a group on a topic for a watcher of it.

    Attributes:
        topic, group: the topic and the group.
        is_there: whether the topic exists.
        is_broadcasting: whether the instances of the group share no messages, so that it has no doorbell.
        paused_at: since when the group is paused on the topic, in UTC.
    """

    topic: str
    group: str
    is_there: bool
    is_broadcasting: bool
    paused_at: datetime | None


@dataclass(frozen=True, slots=True)
class OverdueTopic:
    """A topic with messages that are due and not released.

    Attributes:
        topic: the topic's name.
        due_at: when the first of them was due, in UTC.
    """

    topic: str
    due_at: datetime


@dataclass(frozen=True, slots=True)
class RunningLease:
    """A lease that has not ended; instants in UTC.

    Attributes:
        group, topic, queue: the group, topic and queue of its messages.
        consumer: the holder.
        leased_at, expires_at: its beginning and its end.
        messages, answered: how many, and how many of them have an answer.
        is_retry: whether it is not their first attempt.
        lease_id: names it for :meth:`duewheel.store.broker.Broker.release_lease`.
    """

    group: str
    topic: str
    queue: int
    consumer: str | None
    leased_at: datetime
    expires_at: datetime
    messages: int
    answered: int
    is_retry: bool
    lease_id: str


@dataclass(frozen=True, slots=True)
class WaitingRetry:
    """A message that waits for its next attempt.

    Attributes:
        group, topic: the group that retries it, and its topic.
        message_id, key, tag: as it was sent.
        attempt: which attempt the next one is.
        deliver_at: when it is due, in UTC.
        reason: why the previous attempt failed.
    """

    group: str
    topic: str
    message_id: str
    key: str | None
    tag: str | None
    attempt: int
    deliver_at: datetime
    reason: str | None


@dataclass(frozen=True, slots=True)
class NamedMessage:
    """A message that was sent or received under a name.

    Attributes:
        message_id, key, tag: as it was sent.
        born_at, deliver_at: when it was sent and is due, in UTC.
        attempt: which attempt it was when it was received; 1 if it was sent.
        leased_at: when it was received, in UTC; None if it was sent.
    """

    message_id: str
    key: str | None
    tag: str | None
    born_at: datetime
    deliver_at: datetime
    attempt: int
    leased_at: datetime | None


def now(broker: Connected) -> datetime:
    """The database's present instant in UTC, which alone decides what is due.

    Raises:
        BrokerUnreachable: the server does not answer.
    """
    return to_datetime(read(broker, _NOW, ())[0][0])


def due_histogram(
    broker: Connected,
    from_at: datetime,
    step: timedelta,
    steps: int,
    topic: str | None = None,
    max_ms: int = 250,
    max_counted: int = 500,
) -> DueHistogram:
    """How many messages are due in each of a row of equal steps of time, which may begin in the past.

    Args:
        broker: the broker.
        from_at: the beginning of the first step.
        step: the length of each step.
        steps: how many, 1 to 400.
        topic: of this topic; None is all.
        max_ms: after so many milliseconds, 1 to 10 000, counting stops: the rest is from a sample.
        max_counted: so many of a topic are counted in a step, 1 to 100 000; above that it is an estimate.

    Raises:
        UnknownTopic: no topic has this name.
        InvalidArgument: too many steps, or empty ones.

    Example::

        next_minute = due_histogram(broker, now(broker), timedelta(seconds=1), 60)
    """
    check_text(topic, "topic", optional=True)
    rows = read(broker, _DUE, (from_at, step, steps, topic, max_ms, max_counted))
    due = tuple(DueStep(*row) for row in rows if row[0] is not None)
    counted_steps = steps
    if len(due) < len(rows):
        counted_steps = 0 if topic is None else max((one.step + 1 for one in due), default=0)
    return DueHistogram(
        from_at=to_datetime(from_at, "from_at"),
        step=step,
        steps=steps,
        due=due,
        counted_steps=counted_steps,
    )


def flow_histogram(
    broker: Connected, from_at: datetime, step: timedelta, steps: int, topic: str | None = None
) -> list[FlowStep]:
    """The messages that groups received, acked and failed in each step, of one topic or of all: the newest
    1 000 leases of a queue.

    Raises:
        UnknownTopic: no topic has this name.
    """
    check_text(topic, "topic", optional=True)
    source = "flow_histogram(%s, %s, %s, of_topic => %s)"
    return read_records(broker, FlowStep, source, (from_at, step, steps, topic), step="step_number")


def lateness(broker: Connected, since_at: datetime) -> list[TopicLateness]:
    """How late the newest ticks of each topic since an instant were; at most 50 for each."""
    return read_records(broker, TopicLateness, "release_lateness(%s)", (since_at,), topic="topic_name")


def lateness_by_hour(
    broker: Connected, from_at: datetime, hours: int = 24, max_ms: int = 1_000
) -> tuple[list[HourLateness], int]:
    """How late the newest 10 ticks of each topic were in each hour from an instant on, the newest hour first.

    Args:
        broker: the broker.
        from_at: the beginning of the first hour.
        hours: how many.
        max_ms: after so many milliseconds no further hour is read.

    Returns:
        The hours of topics in which something was released, and how many hours were read completely.
    """
    ends_at = time.monotonic() + max_ms / 1_000
    found: list[HourLateness] = []
    for hour in reversed(range(hours)):
        left_ms = max(1, min(10_000, int((ends_at - time.monotonic()) * 1_000)))
        since_at = from_at + timedelta(hours=hour)
        began_at = time.monotonic()
        bounds = (since_at, since_at + timedelta(hours=1), left_ms)
        found += [HourLateness(topic, hour, p99) for topic, p99 in read(broker, _HOUR_LATENESS, bounds)]
        # When its time is used up, topics may be missing, and the result does not show which.
        if (time.monotonic() - began_at) * 1_000 >= left_ms:
            return found, hours - 1 - hour
        if time.monotonic() >= ends_at:
            return found, hours - hour
    return found, hours


def turning_wheels(broker: Connected) -> list[TurningWheel]:
    """The connected wheels, the longest running first."""
    return read_records(broker, TurningWheel, "wheels()", ())


def watched_groups(broker: Connected, watched: Iterable[tuple[str, str]]) -> list[WatchedGroup]:
    """The state of these topics and groups for a watcher; subscribes and releases nothing."""
    topics, groups = zip(*watched, strict=True)
    given = (list(topics), list(groups))
    source = "watched_groups(%s::text[], %s::text[])"
    return read_records(broker, WatchedGroup, source, given, topic="topic_name", group="group_name")


def waiting_consumers(broker: Connected) -> tuple[list[WaitingConsumer], bool]:
    """The consumers that wait for messages, by topic and group, at most 200; and whether there are more."""
    found = read_records(
        broker, WaitingConsumer, "waiting_consumers()", (), topic="topic_name", group="group_name"
    )
    return found[:_MOST_LISTED], len(found) > _MOST_LISTED


def overdue_topics(broker: Connected, due_until: datetime) -> tuple[list[OverdueTopic], bool]:
    """The topics with waiting messages that were due by an instant, the longest overdue first, at most 200;
    and whether there are more."""
    bounds = (due_until, _MOST_LISTED + 1)
    found = read_records(broker, OverdueTopic, "overdue_topics(%s, %s)", bounds, topic="topic_name")
    return found[:_MOST_LISTED], len(found) > _MOST_LISTED


def expired_leases(broker: Connected, since_at: datetime, until_at: datetime) -> list[tuple[str, str, int]]:
    """The group, the topic and the number of leases that ended without an answer between two instants; of the
    newest 1 000."""
    return [tuple(row) for row in read(broker, _EXPIRED, (since_at, until_at))]


def waiting_messages(broker: Connected, since_at: datetime, max_ms: int) -> tuple[int, bool]:
    """How many messages wait on all topics, and whether that was counted; else it is an estimate, with the
    retries among them.

    Args:
        broker: the broker.
        since_at: when the first of them is due.
        max_ms: after so many milliseconds counting stops.
    """
    ((waiting, exact),) = read(broker, _WAITING, (since_at, max_ms))
    return waiting, exact


def running_leases(
    broker: Connected, max_leases: int = 200, group: str | None = None, topic: str | None = None
) -> tuple[list[RunningLease], bool]:
    """The leases that have not ended, the next to end first, of one group or topic, or of all; and whether
    there may be more."""
    check_text(group, "group", optional=True)
    check_text(topic, "topic", optional=True)
    source = "running_leases(%s, %s, of_group => %s, of_topic => %s)"
    parameters = (broker.now(), checked_limit(max_leases), group, topic)
    found = read_records(broker, RunningLease, source, parameters, group="consumer_group")
    leases = [one for one in found if one.lease_id]
    return leases, len(leases) < len(found)


def waiting_retries(
    broker: Connected, group: str | None = None, topic: str | None = None, max_messages: int = 100
) -> list[WaitingRetry]:
    """The messages that wait for their next attempt, the next one first.

    Raises:
        UnknownGroup: no group has this name.
    """
    check_text(group, "group", optional=True)
    check_text(topic, "topic", optional=True)
    source, parameters = "waiting_retries(%s, %s, %s)", (group, topic, checked_limit(max_messages))
    return read_records(broker, WaitingRetry, source, parameters, group="group_name", topic="topic_name")


def still_waiting(broker: Connected, message_ids: Sequence[str]) -> list[tuple[str, ListedMessage]]:
    """The messages among these ids that still wait, each after the given id; the next due first.

    Args:
        broker: the broker.
        message_ids: ids that the messages have, or had before they were moved; at most 10 000.
    """
    rows = read(broker, _STILL_WAITING, (list(message_ids),))
    return list(zip([row[0] for row in rows], records(ListedMessage, (row[1:] for row in rows)), strict=True))


def messages_by_name(
    broker: Connected,
    name: str,
    topic: str,
    group: str | None = None,
    since_at: datetime | None = None,
    until_at: datetime | None = None,
) -> list[NamedMessage]:
    """The messages sent on a topic under a name, and then those received under it; at most 200 of each, in
    the order of time.

    Args:
        broker: the broker.
        name: of a consumer, or an idempotency key; also followed by a slash and a place.
        topic: the topic.
        group: the consumer's group; None asks for sent messages only.
        since_at, until_at: received between these instants; the newest 2 000 leases of each queue before
            ``until_at`` are read.

    Raises:
        UnknownTopic, UnknownGroup: no such topic or group.
    """
    for value, what, optional in ((name, "name", False), (topic, "topic", False), (group, "group", True)):
        check_text(value, what, optional=optional)
    parameters = (name, topic, group, since_at or "-infinity", until_at or "infinity")
    found = read_records(broker, NamedMessage, "messages_by_name(%s, %s, %s, %s, %s)", parameters)
    return sorted(found, key=lambda one: (one.leased_at is not None, one.leased_at or one.born_at))
