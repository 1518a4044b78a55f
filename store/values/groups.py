"""A consumer group, as it is listed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from duewheel.store.values.instants import to_datetime
from duewheel.store.values.messages import ConsumeMode
from duewheel.store.values.retry_policy import RetryPolicy, stored_policy


@dataclass(frozen=True, slots=True)
class Group:
    """A consumer group on one topic; instants in UTC.

    Attributes:
        group: the group's name.
        topic: the topic it reads.
        mode: clustering or broadcasting.
        instances: of a broadcasting group the names of its instances.
        retry: when failed messages are delivered again; None in broadcasting, which does not retry.
        retry_set_by: the consumer that set this, None while it is the default.
        retry_set_at: when that consumer set it.
        read_to: every instance has received everything due up to this instant; None before the first message.
        lag: how far ``read_to`` is behind the newest release; zero if no message is ready, None if messages
            are ready and none has been received yet.
        stalled_since: when the group's position last moved, if messages have been ready and unread for longer
            than the topic's retention since then; else None. Messages that it does not read stay on disk.
        paused_at: since when the group is paused and receives nothing; None if it is not paused, or if one
            instance of a broadcasting group is not.
        tags: the tags that it receives, ``*`` for all; None of a broadcasting group whose instances have
            different tags or filters.
        filter: the predicate over the properties of the messages that it receives; None for no predicate.
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
    paused_at: datetime | None = None
    tags: str | None = None
    filter: str | None = None


@dataclass(frozen=True, slots=True)
class _Instance:
    """A row of ``duewheel.groups``: a clustering group on one topic, or an instance of a broadcasting one."""

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
    paused_at: datetime | None
    tags: str
    filter: str | None


def groups_of(rows: Iterable[Sequence[Any]]) -> list[Group]:
    """The groups of rows of ``duewheel.groups``, in their order."""
    instances: dict[tuple[str, str], list[_Instance]] = {}
    for row in rows:
        instance = _Instance(*row)
        instances.setdefault((instance.group, instance.topic), []).append(instance)
    return [_group(of_group) for of_group in instances.values()]


def _group(instances: list[_Instance]) -> Group:
    # The settings, and the topic's newest release, are the same in all instances.
    one = instances[0]
    mode = ConsumeMode(one.mode)
    read = [instance.read_to for instance in instances if instance.read_to is not None]
    read_to = min(read) if len(read) == len(instances) else None
    stalled = (instance.stalled_since for instance in instances if instance.stalled_since is not None)
    paused = [instance.paused_at for instance in instances if instance.paused_at is not None]
    retry = stored_policy(one.max_retries, one.waits_us, one.jitter, one.is_ordered)
    chosen = {(instance.tags, instance.filter) for instance in instances}
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
        to_datetime(min(paused)) if len(paused) == len(instances) else None,
        *(chosen.pop() if len(chosen) == 1 else (None, None)),
    )


def _lag(read_to: datetime | None, released_to: datetime | None) -> timedelta | None:
    if released_to is None:
        return timedelta(0)
    return None if read_to is None else max(timedelta(0), released_to - read_to)
