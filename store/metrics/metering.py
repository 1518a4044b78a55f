"""The broker's numbers for a metrics server: what Airflow's triggerer and ``duewheel wheel run`` send alike.

Gauges give the present state, and every program sends them. Counters and the timer give the events since the
last report. Only one program claims each report, so the counts add up.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

from duewheel.store.metrics.reporting import claim_report
from duewheel.store.operations import overview, statistics

if TYPE_CHECKING:
    from duewheel.store.operations.lookups import Lookups

log = logging.getLogger(__name__)

#: The share of the time between two reports after which a program may claim the next one. It is below 1,
#: since the clocks of two programs may differ.
CLAIMED_AFTER: Final = 0.9


class Measured(NamedTuple):
    """One number.

    Attributes:
        kind: ``gauge``, ``count`` or ``timing``.
        name: the metric, without the prefix ``duewheel.``.
        value: an int, or a span for a timing.
        tags: topic and group, as far as the metric has them.
    """

    kind: str
    name: str
    value: int | timedelta
    tags: Mapping[str, str]


def measured(broker: Lookups, every: timedelta, *, turns: bool) -> Iterator[Measured]:
    """The numbers of a broker now, and the events since the last report.

    Args:
        broker: the broker; its login needs the role duewheel_consumer.
        every: the time between two reports of the caller.
        turns: whether the caller turns a wheel; else the broker is asked whether any program does.

    Example::

        for number in measured(broker, timedelta(minutes=1), turns=True): ...
    """
    yield Measured("gauge", "wheel.turning", int(turns or bool(overview.turning_wheels(broker))), {})
    numbers, now = broker.stats(), overview.now(broker)
    yield from _upkeep(numbers.upkeep, now)
    for found in numbers.topics:
        yield Measured("gauge", "waiting", found.waiting, {"topic": found.topic})
        for reader in found.groups:
            names = {"topic": found.topic, "group": reader.group}
            yield Measured("gauge", "ready", reader.ready, names)
            yield Measured("gauge", "inflight", reader.inflight, names)
            yield Measured("gauge", "retries", reader.waiting_retry, names)
            yield Measured("gauge", "dead_letters", reader.dead, names)
            yield Measured("gauge", "dead_letters.dropped_soon", reader.dropped_soon, names)
            yield Measured("gauge", "paused", int(reader.paused_at is not None), names)
            since = reader.abandoned_since or now
            yield Measured("gauge", "abandoned_seconds", int((now - since).total_seconds()), names)
            yield Measured("gauge", "kept_bytes", reader.kept_bytes, names)
    report = claim_report(broker, CLAIMED_AFTER * every)
    if report is None:
        return
    for released in report.released:
        if not released.exact:
            log.warning(
                "The %d messages released of topic %s are an estimate: counting took too long",
                released.messages,
                released.topic,
            )
        yield Measured("count", "released", released.messages, {"topic": released.topic})
        for late in released.late:
            yield Measured("timing", "lateness", late, {"topic": released.topic})
    for expired in report.expired:
        names = {"topic": expired.topic, "group": expired.group}
        yield Measured("count", "expired_leases", expired.leases, names)


def _upkeep(upkeep: statistics.Upkeep, now: datetime) -> Iterator[Measured]:
    age_seconds = int((now - upkeep.maintained_at).total_seconds())
    yield Measured("gauge", "upkeep.age_seconds", age_seconds, {})
    # If the beginning is hidden, it is only known to be over an hour ago.
    held_seconds = (
        (now - one.since_at).total_seconds() if one.since_at else 3_600.0 for one in upkeep.held_up_by
    )
    yield Measured("gauge", "upkeep.held_up_seconds", int(max(held_seconds, default=0.0)), {})
