"""The faults of a broker, by the alert rules of the documents: of each kind the worst first.

The page adds wheels, overdue messages, lateness and watchers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final, TypeVar

from duewheel.plugin import models
from duewheel.store import Broker
from duewheel.store.operations import overview, statistics

_Found = TypeVar("_Found")

#: As in the alert rules: LeasesExpire, GroupDoesNotKeepUp, UpkeepIsOverdue.
_EXPIRED_WITHIN: Final = timedelta(minutes=15)
_LAGS: Final = timedelta(minutes=30)
_UPKEEP_EVERY: Final = timedelta(hours=2)
#: The verdict names the worst of a kind, and the list below it has five rows.
_MOST_OF_A_KIND: Final = 6


def faults_of(
    broker: Broker, groups: Sequence[statistics.GroupNumbers], now_at: datetime
) -> list[models.Fault]:
    """The faults of groups and of upkeep.

    Args:
        broker: the broker.
        groups: the numbers of all its groups.
        now_at: the instant of these numbers.
    """
    return [*_of_groups(broker, groups, now_at), *_of_upkeep(broker, now_at)]


def _of_groups(
    broker: Broker, groups: Sequence[statistics.GroupNumbers], now_at: datetime
) -> Iterator[models.Fault]:
    dead = statistics.by_dead_letters(one for one in groups if one.dead)
    yield from _worst("dead_letters", dead, "dead")
    dropped = sorted((one for one in groups if one.dropped_soon), key=lambda one: -one.dropped_soon)
    yield from _worst("dropped_soon", dropped, "dropped_soon")
    abandoned = [one for one in groups if one.abandoned_since is not None]
    abandoned.sort(key=lambda one: one.abandoned_since or now_at)
    yield from _worst("abandoned", abandoned, "kept_messages", "abandoned_since")
    behind = [one for one in groups if one.ready and one.paused_at is None and one.abandoned_since is None]
    idle = sorted((one for one in behind if one.idle_since), key=lambda one: one.idle_since or now_at)
    yield from _worst("takes_nothing", idle, "ready", "idle_since")
    lagging = sorted(
        (one for one in behind if not one.idle_since and now_at - (one.oldest_deliver_at or now_at) > _LAGS),
        key=lambda one: one.oldest_deliver_at or now_at,
    )
    yield from _worst("lags", lagging, "ready", "oldest_deliver_at")
    expired = overview.expired_leases(broker, now_at - _EXPIRED_WITHIN, now_at)
    for place, (group, topic, leases) in _first(sorted(expired, key=lambda found: -found[2])):
        yield _fault("leases_expire", group, topic, leases, None, len(expired) - 1 - place)


def _of_upkeep(broker: Broker, now_at: datetime) -> Iterator[models.Fault]:
    holders = statistics.upkeep_holders(broker)
    for one in holders[:1]:
        yield _fault("upkeep_held_up", None, None, None, one.since_at, len(holders) - 1)
    done_at = statistics.maintained_at(broker)
    if now_at - done_at > _UPKEEP_EVERY:
        yield _fault("upkeep_overdue", None, None, None, done_at, 0)


def _worst(
    kind: models.FaultKind, found: Iterable[statistics.GroupNumbers], number: str, since: str | None = None
) -> Iterator[models.Fault]:
    """A fault of each of the first groups."""
    all_found = list(found)
    for place, one in _first(all_found):
        since_at = getattr(one, since) if since else None
        yield _fault(kind, one.group, one.topic, getattr(one, number), since_at, len(all_found) - 1 - place)


def _first(found: Sequence[_Found]) -> Iterator[tuple[int, _Found]]:
    """As many as the page shows, each with its place."""
    yield from enumerate(found[:_MOST_OF_A_KIND])


def _fault(
    kind: models.FaultKind,
    group: str | None,
    topic: str | None,
    number: int | None,
    since_at: datetime | None,
    others: int,
) -> models.Fault:
    return models.Fault(kind=kind, group=group, topic=topic, number=number, since_at=since_at, others=others)
