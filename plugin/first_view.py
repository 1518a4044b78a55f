"""The numbers of the first view and its tiles, computed from the broker's within a stated time."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final, Literal, TypeVar

from psycopg2.errors import QueryCanceled

from duewheel.plugin import models
from duewheel.plugin.faults import faults_of
from duewheel.plugin.time_axis import axis_of, axis_steps
from duewheel.store import Broker
from duewheel.store.operations import overview, statistics
from duewheel.store.operations.reading import limited

_HOUR: Final = timedelta(hours=1)
_MINUTE: Final = timedelta(minutes=1)
#: The hours of the last day, including the present one.
_HOURS: Final = 24
_RECENTLY: Final = timedelta(minutes=5)
#: A topic whose next message has been due for longer than this is not being released.
_LONG_DUE: Final = timedelta(seconds=5)
#: The messages of so many of these topics are counted, each for so long.
_COUNTED_OVERDUE: Final = 5
_OVERDUE_MS: Final = 10
#: How long the view of all topics may take; counting the messages due ahead takes the rest. How long messages
#: before now, messages of groups and waiting messages may be counted. One topic gets what it needs.
_VIEW_MS: Final = 230
_LEAST_DUE_MS: Final = 50
_PAST_MS: Final = 100
_GROUPS_MS: Final = 100
_WAITING_MS: Final = 50
_ONE_TOPIC_MS: Final = 3_000

#: How long one part of the first view may take that reads leases.
_PART_MS: Final = 1_000

#: After this time the store reads no further leases and releases, without reporting it.
_LOOK_SECONDS: Final = 0.2

_Part = TypeVar("_Part")


def groups_of(broker: Broker) -> models.AllGroups:
    """The numbers of the groups on all topics, within their time."""
    now_at = overview.now(broker)
    groups, groups_to = statistics.all_group_numbers(broker, _GROUPS_MS)
    faults = _in_time(lambda: faults_of(broker, groups, now_at))
    return models.AllGroups(now_at=now_at, groups=groups, groups_to=groups_to, faults=faults)


def _in_time(read: Callable[[], list[_Part]]) -> list[_Part] | None:
    """A part of the first view; None if it takes too long."""
    try:
        with limited(_PART_MS):
            return read()
    except QueryCanceled:
        return None


def _late_since(broker: Broker, since_at: datetime) -> tuple[list[models.TopicLateness], bool]:
    """How late topics were released, and whether there was time for all of them."""
    began = time.monotonic()
    found = [_lateness(one) for one in overview.lateness(broker, since_at)]
    return found, time.monotonic() - began < _LOOK_SECONDS


def overview_of(
    broker: Broker,
    span: str,
    topic: str | None,
    from_at: datetime | None,
    until_at: datetime | None,
) -> models.Overview:
    """What was released and is due, and how late releases of the last hour were.

    Args:
        broker: the broker.
        span, from_at, until_at: the axis; see :func:`duewheel.plugin.time_axis.axis_steps`.
        topic: one topic; None for all of them.
    """
    began = time.monotonic()
    now_at = overview.now(broker)
    place = axis_steps(now_at, span, from_at, until_at)
    flow_began = time.monotonic()
    flow = _in_time(lambda: _flow(broker, now_at, place, topic))
    missing: list[Literal["flow", "lateness"]] = []
    if flow is None or time.monotonic() - flow_began > _LOOK_SECONDS:
        missing.append("flow")
    late, has_all = _late_since(broker, now_at - _HOUR)
    if not has_all:
        missing.append("lateness")
    past_ms = due_ms = _ONE_TOPIC_MS // 2
    if topic is None:
        past_ms = _PAST_MS
        due_ms = max(_LEAST_DUE_MS, _VIEW_MS - int((time.monotonic() - began) * 1_000))
    return models.Overview(
        now_at=now_at,
        axis=axis_of(broker, now_at, place, topic, past_ms, due_ms),
        flow=flow or [],
        lateness=[one for one in late if topic in (None, one.topic)],
        held_up_by=statistics.upkeep_holders(broker),
        missing=missing,
    )


def _flow(
    broker: Broker, now_at: datetime, place: tuple[datetime, timedelta, int], topic: str | None
) -> list[overview.FlowStep]:
    """The groups' work before now, from the newest leases only, so that it shows nothing of a long time."""
    from_at, step, steps = place
    if step > _MINUTE or from_at >= now_at:
        return []
    return overview.flow_histogram(broker, from_at, step, steps, topic)


def _overdue_messages(
    broker: Broker, late: overview.OverdueTopic, now_at: datetime
) -> tuple[overview.DueStep, ...]:
    span = now_at - late.due_at
    return overview.due_histogram(broker, late.due_at, span, 1, late.topic, _OVERDUE_MS).due


def pulse_of(broker: Broker, groups: models.AllGroups | None) -> models.Pulse:
    """The state of a broker in a few numbers, the most urgent first.

    Args:
        broker: the broker.
        groups: the numbers of the groups; None if they are not known.
    """
    now_at = overview.now(broker)
    overdue, overdue_has_more = overview.overdue_topics(broker, now_at - _LONG_DUE)
    known = groups if groups is not None and groups.groups_to != "" else None
    lagging = [
        one
        for one in (known.groups if known else [])
        if one.paused_at is None and one.oldest_deliver_at is not None
    ]
    late, late_has_all = _late_since(broker, now_at - _RECENTLY)
    due_since = overdue[0].due_at if overdue else now_at
    waiting, waiting_is_exact = overview.waiting_messages(broker, due_since, _WAITING_MS)
    return models.Pulse(
        now_at=now_at,
        wheels=overview.turning_wheels(broker),
        overdue=overdue,
        overdue_has_more=overdue_has_more,
        overdue_messages=[
            step for one in overdue[:_COUNTED_OVERDUE] for step in _overdue_messages(broker, one, now_at)
        ],
        waiting=waiting,
        waiting_is_exact=waiting_is_exact,
        groups_at=known.now_at if known else None,
        groups_to=known.groups_to if known else None,
        faults=known.faults if known else None,
        dead=sum(one.dead for one in known.groups) if known else None,
        lag=min(lagging, key=lambda one: one.oldest_deliver_at or now_at, default=None),
        late_has_all=late_has_all,
        late=max(late, key=lambda one: one.p99_seconds, default=None),
    )


def day_lateness_of(broker: Broker) -> models.DayLateness:
    """How late each topic was released in each hour of the last day, the latest topic first."""
    from_at = overview.now(broker).replace(minute=0, second=0, microsecond=0) - (_HOURS - 1) * _HOUR
    found, hours = overview.lateness_by_hour(broker, from_at, _HOURS)
    topics: dict[str, dict[int, float]] = {}
    for one in found:
        topics.setdefault(one.topic, {})[one.hour] = one.p99.total_seconds()
    return models.DayLateness(
        from_at=from_at,
        hours=_HOURS,
        looked_at_hours=hours,
        topics=[
            models.TopicDay(topic=topic, p99_seconds=[by_hour.get(hour) for hour in range(_HOURS)])
            for topic, by_hour in sorted(topics.items(), key=lambda one: (-max(one[1].values()), one[0]))
        ],
    )


def names_of(broker: Broker) -> models.Names:
    """The names of topics and groups."""
    topics, groups = statistics.names(broker)
    return models.Names(topics=topics, groups=groups)


def _lateness(found: overview.TopicLateness) -> models.TopicLateness:
    return models.TopicLateness(
        topic=found.topic,
        ticks=found.ticks,
        p50_seconds=found.p50.total_seconds(),
        p99_seconds=found.p99.total_seconds(),
        newest_at=found.newest_at,
        by_wheel=found.by_wheel,
    )
