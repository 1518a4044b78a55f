"""Consumer groups: their topics, their retry settings and who set them, and their positions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from duewheel.store.database.connections import Database
from duewheel.store.values.bodies import check_text
from duewheel.store.values.instants import Instant, to_datetime
from duewheel.store.values.messages import ConsumeMode
from duewheel.store.values.retry_policy import NO_LIMIT, RetryPolicy

_GROUPS = """
select consumer_group, topic, mode, instance, max_retries,
    array(select (extract(epoch from i) * 1000000)::bigint
          from unnest(retry_intervals) with ordinality w (i, place) order by place),
    retry_jitter, message_type = 'FIFO', settings_by, settings_at, read_to, released_to, stalled_since
from duewheel.groups
order by consumer_group, topic, instance
"""

_REWIND = """
select sum(leases_ended)::bigint, sum(messages_returned)::bigint, sum(retries_taken_back)::bigint
from duewheel.rewind(%s, %s, %s, %s, %s)
"""


@dataclass(frozen=True, slots=True)
class Group:
    """A consumer group on one topic; instants in UTC.

    Attributes:
        group: the group's name.
        topic: the topic it reads.
        mode: clustering or broadcasting.
        instances: of a broadcasting group the names of its instances.
        retry: when failed messages come again; None in broadcasting, where they do not.
        retry_set_by: the consumer that set this, None while it is the default.
        retry_set_at: when that consumer set it.
        read_to: every instance has received everything due up to this instant; None before the first message.
        lag: how far ``read_to`` is behind the newest release; zero where nothing is ready, None where
            messages are ready and none has been received yet.
        stalled_since: when it last went on, if messages have been ready and unread for longer than the
            topic's retention since then; None where it keeps up. Messages it does not read stay on disk.
    """

    group: str
    topic: str
    mode: ConsumeMode
    instances: tuple[str, ...]
    retry: RetryPolicy | None
    retry_set_by: str | None
    retry_set_at: datetime | None
    read_to: datetime | None
    lag: timedelta | None
    stalled_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class Rewound:
    """The result of a rewind.

    Attributes:
        leases_ended: leases that were not answered; a later answer is refused.
        messages_returned: messages of these leases that were released before the instant: they are ready
            again.
        retries_taken_back: retries of messages that come again by the new position.
    """

    leases_ended: int
    messages_returned: int
    retries_taken_back: int


@dataclass(frozen=True, slots=True)
class _Instance:
    """A row of ``_GROUPS``: a clustering group on one topic, or one instance of a broadcasting group."""

    group: str
    topic: str
    mode: str
    instance: str | None
    max_retries: int
    waits_us: list[int]
    jitter: float
    is_ordered: bool
    retry_set_by: str | None
    retry_set_at: datetime | None
    read_to: datetime | None
    released_to: datetime | None
    stalled_since: datetime | None


def groups(database: Database) -> list[Group]:
    """All groups, by name and topic; see :meth:`duewheel.store.broker.Broker.groups`."""
    instances: dict[tuple[str, str], list[_Instance]] = {}
    for row in database.read(_GROUPS, ()):
        instance = _Instance(*row)
        instances.setdefault((instance.group, instance.topic), []).append(instance)
    return [_group(of_group) for of_group in instances.values()]


def rewind(database: Database, group: str, topic: str, to: Instant | str) -> Rewound:
    """Lets a group go back; see :meth:`duewheel.store.broker.Broker.rewind`."""
    check_text(group, "group")
    check_text(topic, "topic")
    if isinstance(to, str):
        check_text(to, "to")
        instant, start = None, to
    else:
        instant, start = to_datetime(to, "to"), None
    return Rewound(*database.rows(_REWIND, (group, topic, instant, start, database.now()))[0])


def delete_group(database: Database, group: str, topic: str | None) -> None:
    """Deletes a group; see :meth:`duewheel.store.broker.Broker.delete_group`."""
    check_text(group, "group")
    check_text(topic, "topic", optional=True)
    more = True
    while more:
        ((more,),) = database.rows("select more from duewheel.delete_group(%s, %s)", (group, topic))


def _group(instances: list[_Instance]) -> Group:
    # The settings, and the topic's newest release, are the same in all instances.
    one = instances[0]
    mode = ConsumeMode(one.mode)
    read = [instance.read_to for instance in instances if instance.read_to is not None]
    read_to = min(read) if len(read) == len(instances) else None
    stalled = (instance.stalled_since for instance in instances if instance.stalled_since is not None)
    retry = RetryPolicy(
        None if one.is_ordered and one.max_retries == NO_LIMIT else one.max_retries,
        tuple(timedelta(microseconds=wait_us) for wait_us in one.waits_us),
        one.jitter,
        one.is_ordered,
    )
    return Group(
        one.group,
        one.topic,
        mode,
        tuple(instance.instance for instance in instances if instance.instance is not None),
        None if mode is ConsumeMode.BROADCASTING else retry,
        one.retry_set_by,
        None if one.retry_set_at is None else to_datetime(one.retry_set_at),
        None if read_to is None else to_datetime(read_to),
        _lag(read_to, one.released_to),
        min(map(to_datetime, stalled), default=None),
    )


def _lag(read_to: datetime | None, released_to: datetime | None) -> timedelta | None:
    if released_to is None:
        return timedelta(0)
    return None if read_to is None else max(timedelta(0), released_to - read_to)
