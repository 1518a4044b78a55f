"""Events since the last report, for counters: each release and each ended lease counts once.

However many wheels turn and programs report, the program that first claims a stretch of time reports it. The
numbers are bounded as in :mod:`duewheel.store.operations.overview`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from duewheel.store.database.connections import fetch, transaction

if TYPE_CHECKING:
    from duewheel.store.database.connected import Connected
    from duewheel.store.database.connections import DriverConnection

_CLAIM = "select since_at, until_at from duewheel.claim_report(%s)"
_RELEASES = "select topic_name, messages, exact, late from duewheel.releases_between(%s, %s)"
_EXPIRED = "select consumer_group, topic, leases from duewheel.expired_between(%s, %s)"


@dataclass(frozen=True, slots=True)
class Released:
    """The releases of a topic.

    Attributes:
        topic: the topic's name.
        messages: how many messages, without recalled ones.
        exact: whether they were counted: up to 10 000 of each queue always are, more if there is time. Else
            the number is an estimate.
        late: by how much the first message of each tick was late, of at most 100 ticks.
    """

    topic: str
    messages: int
    exact: bool
    late: tuple[timedelta, ...]


@dataclass(frozen=True, slots=True)
class Expired:
    """Leases of a group on a topic that ended without an answer.

    Attributes:
        group: the group's name.
        topic: the topic's name.
        leases: how many.
    """

    group: str
    topic: str
    leases: int


@dataclass(frozen=True, slots=True)
class Report:
    """The events since the last report.

    Attributes:
        released: by topic.
        expired: by group and topic.
    """

    released: tuple[Released, ...]
    expired: tuple[Expired, ...]


def claim_report(broker: Connected, at_least: timedelta) -> Report | None:
    """The events since the last report, or None if another program has reported within ``at_least``.

    Events older than 10 minutes, or than twice ``at_least``, are left out.

    Args:
        broker: the broker; its login needs the role duewheel_consumer.
        at_least: the shortest time since the last report.

    Example::

        report = claim_report(broker, timedelta(minutes=1))
    """

    def claim(connection: DriverConnection) -> Report | None:
        # One transaction: events that were claimed and could not be read are left to the next report.
        with transaction(connection):
            ((since_at, until_at),) = fetch(connection, _CLAIM, (at_least,))
            if until_at is None:
                return None
            return Report(
                tuple(
                    Released(topic, messages, exact, tuple(late))
                    for topic, messages, exact, late in fetch(connection, _RELEASES, (since_at, until_at))
                ),
                tuple(Expired(*row) for row in fetch(connection, _EXPIRED, (since_at, until_at))),
            )

    return broker._database.run(claim)
