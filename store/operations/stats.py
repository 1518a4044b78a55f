"""Numbers about topics and groups that stay cheap however many messages wait.

Small numbers are counted; large ones are estimated from the sizes of the slots, and marked so.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from duewheel.store.database.connections import Database
from duewheel.store.values.instants import to_datetime
from duewheel.store.values.messages import MessageType

_TOPICS = """
select topic, message_type, waiting, waiting_is_exact, next_due_at, released_to, stragglers
from duewheel.topic_stats(%s)
"""
_GROUPS = """
select consumer_group, topic, ready, oldest_deliver_at, inflight, waiting_retry, dead
from duewheel.group_stats(%s)
"""


@dataclass(frozen=True, slots=True)
class GroupStats:
    """A consumer group on one topic; instants in UTC.

    Attributes:
        group: the group's name.
        ready: messages that are released and not leased yet; counted up to 10 000 for each queue and slot.
        oldest_deliver_at: the instant of the oldest of these.
        inflight: messages under a lease without an answer.
        waiting_retry: messages that wait for their next attempt.
        dead: dead letters that were not sent again.
    """

    group: str
    ready: int
    oldest_deliver_at: datetime | None
    inflight: int
    waiting_retry: int
    dead: int


@dataclass(frozen=True, slots=True)
class TopicStats:
    """A topic with its groups; instants in UTC.

    Attributes:
        topic: the topic's name.
        message_type: the type of its messages.
        waiting: messages that are not released yet; recalled ones are among them.
        waiting_is_exact: whether they were counted; else the number is an estimate.
        next_due_at: when the next of them is due.
        released_to: everything due up to here is released.
        stragglers: messages whose transaction committed after their instant had been ticked.
        groups: the consumer groups that read it.
    """

    topic: str
    message_type: MessageType
    waiting: int
    waiting_is_exact: bool
    next_due_at: datetime | None
    released_to: datetime | None
    stragglers: int
    groups: tuple[GroupStats, ...]


@dataclass(frozen=True, slots=True)
class Stats:
    """The numbers of a broker.

    Attributes:
        topics: all topics, by name.
    """

    topics: tuple[TopicStats, ...]


def stats(database: Database) -> Stats:
    """The numbers of all topics; see :meth:`duewheel.store.broker.Broker.stats`."""
    groups: dict[str, list[GroupStats]] = {}
    for group, topic, ready, oldest, inflight, waiting_retry, dead in database.read(
        _GROUPS, (database.now(),)
    ):
        groups.setdefault(topic, []).append(
            GroupStats(group, ready, _utc(oldest), inflight, waiting_retry, dead)
        )
    return Stats(
        tuple(
            TopicStats(
                topic,
                MessageType(message_type),
                waiting,
                is_exact,
                _utc(next_due_at),
                _utc(released_to),
                stragglers,
                tuple(groups.get(topic, ())),
            )
            for topic, message_type, waiting, is_exact, next_due_at, released_to, stragglers in database.read(
                _TOPICS, (database.now(),)
            )
        )
    )


def _utc(at: datetime | None) -> datetime | None:
    return None if at is None else to_datetime(at)
