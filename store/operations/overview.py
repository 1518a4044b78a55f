"""The numbers of topics and groups, and those of a page at a glance: due messages by time, lateness, answers,
and the holders of leases.

Everything here reads, and is bounded by rows and by time in the database: with ten million waiting messages a
look costs as much as with ten. Where a bound was met, the answer says so.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from duewheel.store.database.connections import Database, Rows, fetch
from duewheel.store.values.bodies import check_text
from duewheel.store.values.dead_letters import LETTER_COLUMNS, DeadLetter, DeadLetterFilter, letters_of
from duewheel.store.values.errors import InvalidArgument
from duewheel.store.values.instants import to_datetime
from duewheel.store.values.messages import MessageType
from duewheel.store.values.records import columns, records

if TYPE_CHECKING:
    from duewheel.store.database.connected import Connected
    from duewheel.store.values.records import One

_NOW = "select pg_catalog.clock_timestamp()"
_DUE = """
select topic_name, step_number, messages, exact from duewheel.due_histogram(%s, %s, %s, %s, max_ms => %s)
"""
_HOUR_LATENESS = """
select topic_name, p99 from duewheel.release_lateness(%s, 10, until_at => %s, max_ms => %s)
"""
_WAITING = "select waiting, exact from duewheel.waiting_messages(%s, %s)"
_NAMES = "select topic from duewheel.topics where topic > %s order by topic limit %s"
_TOPIC_BEFORE = "select max(topic) from duewheel.topics where topic < %s"
#: The groups of so many topics are asked for in one statement.
_TOPICS_AT_ONCE = 500
_DEAD_LETTER_REASONS = """
select {}, complete from duewheel.dead_letter_reasons(%s, %s, dead_from => %s, dead_until => %s)
"""

_DEAD_LETTER_PAGE = """
select {}, place::text
from duewheel.dead_letter_page(
    %s, %s, %s, %s::jsonb, %s, key_prefix => %s, reason_contains => %s, reason_lacks => %s,
    dead_from => %s, dead_until => %s, with_bodies => {})
"""


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
        from_at: where the first step begins, in UTC.
        step: how long each is.
        steps: how many there are.
        due: the steps that hold messages, by topic and step.
        counted_steps: in how many steps, from the first, all messages are counted or estimated: the time was
            up before the others were looked at. Of many topics it is all steps or none.
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
        by_wheel: whether a wheel made one of them; else receivers did.
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
        client_address: the machine; None by a Unix socket, or where this login may not see it.
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
    """A consumer that is there and waits for messages, such as a task that lingers or a program.

    Attributes:
        topic, group: what it waits for.
        consumer: its name: of a task its DAG, run and task, as far as there is room; of a program its own
            name, or its machine and process.
        login: the database user.
        client_address: the machine; None by a Unix socket, or where this login may not see it.
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
    """What a watcher of a group on a topic would be told.

    Attributes:
        topic, group: what it watches.
        is_there: whether there is the topic.
        is_broadcasting: whether the instances of the group share no messages, so that none can be rung for.
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
    """Messages in the hands of a consumer; instants in UTC.

    Attributes:
        group, topic, queue: whose they are.
        consumer: the holder.
        leased_at, expires_at: since when, and until when.
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
        group, topic: whose it is.
        message_id, key, tag: as it was sent.
        attempt: which attempt the next one is.
        deliver_at: when it is due, in UTC.
        reason: why the attempt before failed.
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
        group, topic: whose they are.
        ready: messages that are released and not leased yet; counted among the first 10 000 of each queue,
            recalled ones among them.
        oldest_deliver_at: the instant of the oldest of these.
        inflight: messages under a lease without an answer.
        waiting_retry: messages that wait for their next attempt.
        dead: dead letters that were not sent again.
        dropped_soon: those of them whose retention ends within a day, or has ended; counted up to 10 000.
        paused_at: since when it gets nothing, as it is paused; None where it is not.
        abandoned_since: since when it takes nothing, where messages that it has not read are past retention;
            None while it is paused.
        kept_messages, kept_bytes: these messages, and their size with indexes; estimates above 1 000 in a
            queue.
    """

    group: str
    topic: str
    ready: int
    oldest_deliver_at: datetime | None
    inflight: int
    waiting_retry: int
    dead: int
    dropped_soon: int
    paused_at: datetime | None
    abandoned_since: datetime | None
    kept_messages: int
    kept_bytes: int


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """How far a group has read a topic; instants in UTC.

    Attributes:
        group, topic: whose it is.
        read_to: it has received everything due up to here; None where nothing was released or read yet.
        stalled_since: when it last went on, where it stands still though messages are ready.
    """

    group: str
    topic: str
    read_to: datetime | None
    stalled_since: datetime | None


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
        pid: the session's process, for ``pg_terminate_backend``; None of a prepared transaction.
        login, application: whose it is.
        state: as in ``pg_stat_activity``, or ``prepared``; None where the schema's owner may not see it.
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
        slots_to_seal: slots that are over, and in which it has still to look for messages that no tick
            released.
        slots_past_retention: slots that are past the retention of every topic, and were not dropped yet or
            have messages that a group has not finished.
        messages_to_settle: messages that are to go to their slots; counted up to 10 000.
        held_up_by: who has held it up for over an hour, the longest first.
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
        upkeep: when it was last done, and who holds it up.
    """

    topics: tuple[TopicStats, ...]
    upkeep: Upkeep


@dataclass(frozen=True, slots=True)
class ListedDeadLetter:
    """A dead letter without its body, as :class:`duewheel.store.operations.dead_letters.DeadLetter`."""

    topic: str
    message_id: str
    key: str | None
    tag: str | None
    born_at: datetime
    dead_at: datetime
    attempt: int
    reason: str | None
    redriven_at: datetime | None
    kept_until: datetime


@dataclass(frozen=True, slots=True)
class DeadLetterReason:
    """The open dead letters of a group that have one reason; instants in UTC.

    Attributes:
        reason: why their last attempt failed.
        messages: how many there are.
        first_dead_at, last_dead_at: when the first and the last of them became dead letters.
    """

    reason: str | None
    messages: int
    first_dead_at: datetime
    last_dead_at: datetime


@dataclass(frozen=True, slots=True)
class NamedMessage:
    """A message that was sent or received under a name.

    Attributes:
        message_id, key, tag: as it was sent.
        born_at, deliver_at: when it was sent and is due, in UTC.
        attempt: which attempt it was when it was received; 1 where it was sent.
        leased_at: when it was received, in UTC; None where it was sent.
    """

    message_id: str
    key: str | None
    tag: str | None
    born_at: datetime
    deliver_at: datetime
    attempt: int
    leased_at: datetime | None


_TOPICS = f"select {columns(TopicNumbers)} from duewheel.topic_stats(%s, %s, %s)"
_GROUPS = f"select {columns(GroupNumbers, group='consumer_group')} from duewheel.group_stats(%s, %s, %s)"

#: A broadcasting group has an entry for each instance.
_PROGRESS = """
select concat_ws('/', consumer_group, instance), topic, read_to, stalled_since
from duewheel.groups where topic = any(%s)
"""
_GROUP_NAMES = "select distinct consumer_group from duewheel.groups order by 1 limit %s"
_UPKEEP = (
    "select maintained_at, slots_to_seal, slots_past_retention, messages_to_settle"
    " from duewheel.upkeep_state(%s)"
)
_HOLDERS = f"select {columns(UpkeepHolder)} from duewheel.upkeep_holders(%s)"


def now(broker: Connected) -> datetime:
    """The database's instant in UTC: the only one that says what is due.

    Raises:
        BrokerUnreachable: the server does not answer.
    """
    return to_datetime(_read(broker, _NOW, ())[0][0])


def due_histogram(
    broker: Connected,
    from_at: datetime,
    step: timedelta,
    steps: int,
    topic: str | None = None,
    max_ms: int = 250,
) -> DueHistogram:
    """How many messages are due in each of a row of equal steps of time; the past may be among them.

    Args:
        broker: the broker.
        from_at: where the first step begins.
        step: how long each is.
        steps: how many, 1 to 400.
        topic: of this topic; None is all.
        max_ms: after so many milliseconds, 1 to 10 000, it counts no further.

    Raises:
        UnknownTopic: there is none of this name.
        InvalidArgument: too many steps, or empty ones.

    Example::

        next_minute = due_histogram(broker, now(broker), timedelta(seconds=1), 60)
    """
    check_text(topic, "topic", optional=True)
    rows = _read(broker, _DUE, (from_at, step, steps, topic, max_ms))
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
        UnknownTopic: there is none of this name.
    """
    check_text(topic, "topic", optional=True)
    source = "flow_histogram(%s, %s, %s, of_topic => %s)"
    return _records(broker, FlowStep, source, (from_at, step, steps, topic), step="step_number")


def lateness(broker: Connected, since_at: datetime) -> list[TopicLateness]:
    """How late the newest ticks of each topic since an instant were; at most 50 for each."""
    return _records(broker, TopicLateness, "release_lateness(%s)", (since_at,), topic="topic_name")


def lateness_by_hour(
    broker: Connected, from_at: datetime, hours: int = 24, max_ms: int = 1_000
) -> tuple[list[HourLateness], int]:
    """How late the newest 10 ticks of each topic were in each hour from an instant on, the newest hour first.

    Args:
        broker: the broker.
        from_at: where the first hour begins.
        hours: how many.
        max_ms: after so many milliseconds it looks no further.

    Returns:
        The hours of topics in which something was released, and how many hours were looked at whole.
    """
    ends_at = time.monotonic() + max_ms / 1_000
    found: list[HourLateness] = []
    for hour in reversed(range(hours)):
        left_ms = max(1, min(10_000, int((ends_at - time.monotonic()) * 1_000)))
        since_at = from_at + timedelta(hours=hour)
        began_at = time.monotonic()
        bounds = (since_at, since_at + timedelta(hours=1), left_ms)
        found += [HourLateness(topic, hour, p99) for topic, p99 in _read(broker, _HOUR_LATENESS, bounds)]
        # With its time used up it may have left topics out, and says nothing of them.
        if (time.monotonic() - began_at) * 1_000 >= left_ms:
            return found, hours - 1 - hour
    return found, hours


def turning_wheels(broker: Connected) -> list[TurningWheel]:
    """The wheels that are connected, the one that turns longest first."""
    return _records(broker, TurningWheel, "wheels()", ())


def watched_groups(broker: Connected, watched: Iterable[tuple[str, str]]) -> list[WatchedGroup]:
    """What watchers of these topics and groups would be told; nothing is subscribed or released."""
    topics, groups = zip(*watched, strict=True)
    given = (list(topics), list(groups))
    source = "watched_groups(%s::text[], %s::text[])"
    return _records(broker, WatchedGroup, source, given, topic="topic_name", group="group_name")


def waiting_consumers(broker: Connected) -> list[WaitingConsumer]:
    """The consumers that wait for messages, by topic and group; at most 200."""
    return _records(
        broker, WaitingConsumer, "waiting_consumers()", (), topic="topic_name", group="group_name"
    )


def upkeep_holders(broker: Connected) -> list[UpkeepHolder]:
    """Who has held upkeep up for over an hour, the longest first."""
    return _records(broker, UpkeepHolder, "upkeep_holders(%s)", (broker.now(),))


def overdue_topics(broker: Connected, due_until: datetime) -> list[OverdueTopic]:
    """The topics with waiting messages that were due by an instant, the longest overdue first; at most
    200."""
    return _records(broker, OverdueTopic, "overdue_topics(%s)", (due_until,), topic="topic_name")


def waiting_messages(broker: Connected, since_at: datetime, max_ms: int) -> tuple[int, bool]:
    """How many messages wait on all topics, and whether that was counted; else it is an estimate, with the
    retries among them.

    Args:
        broker: the broker.
        since_at: when the first of them is due.
        max_ms: after so many milliseconds it counts no further.
    """
    ((waiting, exact),) = _read(broker, _WAITING, (since_at, max_ms))
    return waiting, exact


def group_progress(broker: Connected, topics: Sequence[str]) -> list[GroupProgress]:
    """How far the groups on these topics have read them."""
    return records(GroupProgress, _read(broker, _PROGRESS, (list(topics),)))


def names(broker: Connected, most: int = 1_000) -> tuple[list[str], list[str]]:
    """The first topics and the first groups, by name."""
    rows = _read(broker, _GROUP_NAMES, (most,))
    return topic_names(broker, None, most), [name for (name,) in rows]


def running_leases(
    broker: Connected, max_leases: int = 200, group: str | None = None, topic: str | None = None
) -> list[RunningLease]:
    """The leases that run, those that end first at the top; of one group or topic, or of all."""
    check_text(group, "group", optional=True)
    check_text(topic, "topic", optional=True)
    source = "running_leases(%s, %s, of_group => %s, of_topic => %s)"
    parameters = (broker.now(), _limited(max_leases), group, topic)
    return _records(broker, RunningLease, source, parameters, group="consumer_group")


def waiting_retries(
    broker: Connected, group: str | None = None, topic: str | None = None, max_messages: int = 100
) -> list[WaitingRetry]:
    """The messages that wait for their next attempt, the next one first.

    Raises:
        UnknownGroup: there is none of this name.
    """
    check_text(group, "group", optional=True)
    check_text(topic, "topic", optional=True)
    source, parameters = "waiting_retries(%s, %s, %s)", (group, topic, _limited(max_messages))
    return _records(broker, WaitingRetry, source, parameters, group="group_name", topic="topic_name")


def stats(database: Database) -> Stats:
    """The numbers of all topics; see :meth:`duewheel.store.broker.Broker.stats`."""
    groups: dict[str, list[GroupNumbers]] = {}
    for one in records(GroupNumbers, database.read(_GROUPS, (database.now(), None, None))):
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
    rows = _read(broker, _TOPICS, (broker.now(), after, _limited(max_topics)))
    return records(TopicNumbers, rows, message_type=MessageType)


def topic_names(broker: Connected, after: str | None = None, max_topics: int = 100) -> list[str]:
    """The names of the topics that follow ``after``, in the order of :func:`topic_page`."""
    check_text(after, "after", optional=True)
    return [name for (name,) in _read(broker, _NAMES, (after or "", _limited(max_topics)))]


def group_numbers(
    broker: Connected, after_topic: str | None = None, until_topic: str | None = None
) -> list[GroupNumbers]:
    """The numbers of the groups on the topics behind ``after_topic`` up to ``until_topic``, by group."""
    check_text(after_topic, "after_topic", optional=True)
    check_text(until_topic, "until_topic", optional=True)
    return records(GroupNumbers, _read(broker, _GROUPS, (broker.now(), after_topic, until_topic)))


def all_group_numbers(broker: Connected, max_ms: int) -> tuple[list[GroupNumbers], str | None]:
    """The numbers of the groups on all topics.

    Args:
        broker: the broker.
        max_ms: after so many milliseconds it looks at no further topics.

    Returns:
        The groups; and the topic after which, by name, none was looked at, or None where all were.
    """
    ends_at = time.monotonic() + max_ms / 1000
    found: list[GroupNumbers] = []
    last: str | None = None
    while True:
        names = topic_names(broker, last, _TOPICS_AT_ONCE)
        found += group_numbers(broker, last, names[-1]) if names else []
        last = names[-1] if len(names) == _TOPICS_AT_ONCE else None
        if last is None or time.monotonic() > ends_at:
            return found, last


def topic_group_numbers(broker: Connected, topic: str) -> list[GroupNumbers]:
    """The numbers of the groups on one topic."""
    ((before,),) = _read(broker, _TOPIC_BEFORE, (topic,))
    return group_numbers(broker, before, topic)


def by_dead_letters(groups: Iterable[GroupNumbers]) -> list[GroupNumbers]:
    """The groups with the most dead letters first."""
    return sorted(groups, key=lambda one: (-one.dead, -one.ready, -one.waiting_retry, one.group, one.topic))


def by_lag(groups: Iterable[GroupNumbers]) -> list[GroupNumbers]:
    """The groups first that have the most messages ready."""
    return sorted(by_dead_letters(groups), key=lambda one: -one.ready)


def by_need(groups: Sequence[GroupNumbers]) -> list[GroupNumbers]:
    """The groups that need attention first.

    Those that stand still come first, the longest at the top; then in turn the one with the most dead letters
    and the one that lags most.
    """
    still = [one for one in groups if one.abandoned_since is not None]
    still.sort(key=lambda one: (one.abandoned_since is None, one.abandoned_since))
    turns = zip(by_dead_letters(groups), by_lag(groups), strict=True)
    in_turn = ((dead if dead.dead else None, lagging if lagging.ready else None) for dead, lagging in turns)
    wanted = [*still, *(one for pair in in_turn for one in pair if one is not None), *by_dead_letters(groups)]
    return list({(one.group, one.topic): one for one in wanted}.values())


def listed_dead_letters(
    broker: Connected, which: DeadLetterFilter, after: str | None = None, max_messages: int = 100
) -> tuple[list[ListedDeadLetter], str | None]:
    """A page of a group's dead letters without their bodies; else as :func:`dead_letter_page`."""
    shown = columns(ListedDeadLetter, topic="topic_name")
    rows = _dead_letters(broker, _DEAD_LETTER_PAGE.format(shown, False), which, after, max_messages)
    found = records(ListedDeadLetter, (row for *row, _ in rows if row[0] is not None))
    there_may_be_more = len(found) == max_messages or len(found) < len(rows)
    return found, rows[-1][-1] if there_may_be_more else None


def dead_letter_reasons(
    broker: Connected,
    group: str,
    topic: str | None = None,
    dead_from: datetime | None = None,
    dead_until: datetime | None = None,
) -> tuple[list[DeadLetterReason], bool]:
    """The 50 commonest reasons of a group's open dead letters that died from an instant on and before
    another one.

    Returns:
        The reasons, and whether all open dead letters were counted. Of each topic 20 000 are at most, among
        the oldest 50 000 dead letters and, where too few of these are open, the newest 50 000.

    Raises:
        UnknownGroup, UnknownTopic: there is none of this name.
    """
    check_text(group, "group")
    check_text(topic, "topic", optional=True)
    statement = _DEAD_LETTER_REASONS.format(columns(DeadLetterReason))
    rows = _read(broker, statement, (group, topic, dead_from, dead_until))
    # Where none was found and there may be some, one row counts none.
    found = records(DeadLetterReason, (row for *row, _ in rows if row[1] > 0))
    return found, all(complete for *_, complete in rows)


def dead_letter_page(
    broker: Connected, which: DeadLetterFilter, after: str | None = None, max_messages: int = 500
) -> tuple[list[DeadLetter], str | None]:
    """A page of a group's dead letters with their bodies, by topic and the oldest first.

    Args:
        broker: the broker.
        which: the group, and what they have.
        after: where the page before it ended; None is the first.
        max_messages: how many at most, 1 to 1 000. Bodies of more than 4 MiB together end a page before, and
            so does a look at 10 000 dead letters.

    Returns:
        The dead letters, and what to give as ``after`` for the next page, which is None at the end. There may
        be fewer than asked for, or none, before the end.

    Raises:
        UnknownGroup: there is none of this name.
    """
    rows = _dead_letters(broker, _DEAD_LETTER_PAGE.format(LETTER_COLUMNS, True), which, after, max_messages)
    return letters_of(row for *row, _ in rows if row[0] is not None), rows[-1][-1] if rows else None


def _dead_letters(
    broker: Connected, statement: str, which: DeadLetterFilter, after: str | None, max_messages: int
) -> Rows:
    check_text(which.group, "group")
    for name in ("topic", "key_prefix", "reason_contains", "reason_lacks"):
        check_text(getattr(which, name), name, optional=True)
    group, topic, redriven, *criteria = astuple(which)
    return _read(broker, statement, (group, topic, redriven, after, _limited(max_messages), *criteria))


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
        name: of a consumer, and an idempotency key; also with a slash and a place behind it.
        topic: the topic.
        group: the consumer's group; None asks for sent messages only.
        since_at, until_at: received between these instants; of each queue the newest 2 000 leases before
            ``until_at`` are looked at.

    Raises:
        UnknownTopic, UnknownGroup: there is none of this name.
    """
    for value, what, optional in ((name, "name", False), (topic, "topic", False), (group, "group", True)):
        check_text(value, what, optional=optional)
    parameters = (name, topic, group, since_at or "-infinity", until_at or "infinity")
    found = _records(broker, NamedMessage, "messages_by_name(%s, %s, %s, %s, %s)", parameters)
    return sorted(found, key=lambda one: (one.leased_at is not None, one.leased_at or one.born_at))


def _read(broker: Connected, statement: str, parameters: tuple[object, ...]) -> Rows:
    with broker.connection() as connection:
        return fetch(connection, statement, parameters)


def _records(
    broker: Connected, kind: type[One], source: str, parameters: tuple[object, ...], **called: str
) -> list[One]:
    """A dataclass for each row of a function of the schema; ``called`` as for :func:`columns`."""
    rows = _read(broker, f"select {columns(kind, **called)} from duewheel.{source}", parameters)
    return records(kind, rows)


def _limited(count: int) -> int:
    if type(count) is not int or not 1 <= count <= 1_000:
        raise InvalidArgument(f"{count!r} rows were asked for, the limit is 1 to 1000: ask for fewer")
    return count
