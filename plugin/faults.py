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

#: As in the alert rules: GroupTakesNothing, LeasesExpire, GroupDoesNotKeepUp, UpkeepIsOverdue.
_TAKES_NOTHING: Final = timedelta(minutes=15)
_EXPIRED_WITHIN: Final = timedelta(minutes=15)
_LAGS: Final = timedelta(minutes=30)
_UPKEEP_EVERY: Final = timedelta(hours=2)
#: So many groups are checked: those with messages ready for the longest time.
_MOST_BEHIND: Final = 100
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
    behind = sorted(
        (one for one in groups if one.ready and one.paused_at is None and one not in abandoned),
        key=lambda one: one.oldest_deliver_at or now_at,
    )[:_MOST_BEHIND]
    progress = statistics.group_progress(broker, sorted({one.topic for one in behind}))
    since = {(one.group, one.topic): one.stalled_since for one in progress}
    stalled, lagging = [], []
    for one in behind:
        stalled_since = since.get((one.group, one.topic))
        if stalled_since is not None and now_at - stalled_since > _TAKES_NOTHING:
            stalled.append((one, stalled_since))
        elif one.oldest_deliver_at is not None and now_at - one.oldest_deliver_at > _LAGS:
            lagging.append(one)
    for place, (one, at) in _first(sorted(stalled, key=lambda found: found[1])):
        yield _fault("takes_nothing", one.group, one.topic, one.ready, at, len(stalled) - 1 - place)
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
