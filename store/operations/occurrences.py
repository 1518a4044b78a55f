"""Schedules: one message for each occurrence of a cron expression or a fixed interval.

The database stores the schedules and sends. It cannot compute when a schedule next occurs on the wall clock
of a time zone; this module does. The next occurrence is sent at most `HORIZON` before it is due, as an
ordinary delay message, which the wheel then releases to the millisecond. Each step names the occurrence that
it started from, and the database takes the step only while that is still the next occurrence. So any number
of wheels may do the same, and any of them may be killed at any point.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, NamedTuple

import psycopg2

from duewheel.store.database.connections import DriverConnection, fetch
from duewheel.store.values.cron import LONGEST_EVERY, SHORTEST_EVERY, Cron, Every, Rule
from duewheel.store.values.errors import DueWheelError, InvalidSchedule, said
from duewheel.store.values.instants import said_span
from duewheel.store.values.schedules import Misfire

log = logging.getLogger(__name__)

#: How far ahead occurrences are sent; less on a topic whose `max_delay` is less.
HORIZON: Final = timedelta(seconds=60)
#: An occurrence that is later than this when it would be sent is a misfire.
GRACE: Final = timedelta(seconds=60)
#: The longest time between two rounds over the schedules.
LONGEST_PAUSE: Final = timedelta(seconds=2)
#: How many occurrences of a schedule are sent in one transaction, and how many schedules are handled in a
#: round.
OCCURRENCES_AT_ONCE: Final = 200
SCHEDULES_AT_ONCE: Final = 500


_DUE = """
select schedule_id, generation, name, cron, (extract(epoch from every) * 1000000)::bigint, timezone,
    anchor_at, misfire, next_at, (extract(epoch from reach) * 1000000)::bigint, now_at, restarts_at
from duewheel.due_schedules(%s, %s, %s, %s, %s, %s, %s)
"""

_ADVANCE = "select duewheel.advance_schedule(%s, %s, %s, %s::timestamptz[], %s, %s)"


class Plan(NamedTuple):
    """The occurrences of a schedule to send now, and the one after them."""

    occurrences: list[datetime]
    next_at: datetime | None


class Round(NamedTuple):
    """The result of a round over the schedules.

    ``sent`` counts messages. ``more`` is whether there was more to send than a round takes. ``pause`` is the
    time for which there is nothing to send.
    """

    sent: int
    more: bool
    pause: timedelta


@dataclass(frozen=True, slots=True)
class _DueSchedule:
    """A row of ``_DUE``: a schedule with an occurrence that may have to be sent."""

    schedule_id: int
    generation: int
    name: str
    cron: str | None
    every_us: int | None
    timezone: str
    anchor_at: datetime
    misfire: str
    next_at: datetime
    reach_us: int
    now_at: datetime
    restarts_at: datetime | None

    @property
    def reach(self) -> timedelta:
        return timedelta(microseconds=self.reach_us)


def plan(rule: Rule, next_at: datetime, now: datetime, until: datetime, misfire: Misfire) -> Plan:
    """The plan of a schedule up to an instant; pure.

    Args:
        rule: when it occurs.
        next_at: its next occurrence that has not been sent.
        now: the present instant; None is the database's clock.
        until: how far ahead to send, inclusive.
        misfire: what to do when `next_at` is more than `GRACE` ago.
    """
    at: datetime | None = next_at
    if next_at < now - GRACE:
        if misfire is Misfire.SKIP:
            at = rule.first_from(now - GRACE)
        elif misfire is Misfire.ONCE:
            at = rule.last_until(now, since=next_at)
    occurrences: list[datetime] = []
    while at is not None and at <= until and len(occurrences) < OCCURRENCES_AT_ONCE:
        occurrences.append(at)
        at = rule.next_after(at)
    return Plan(occurrences, at)


def send_occurrences(
    connection: DriverConnection,
    *,
    now: datetime | None = None,
    topics: Sequence[str] | None = None,
    schedule_id: int | None = None,
) -> Round:
    """One round over the schedules: sends the occurrences within reach, the longest overdue first.

    A schedule is sent ahead when its next occurrence is nearer than half of its reach, and then up to the
    whole reach. So a schedule that fires every second is sent twice a minute. If a schedule cannot be sent,
    this is logged, and the others are still sent.

    Args:
        connection: an autocommit connection; each schedule is a separate transaction.
        now: the present instant; None is the database's clock.
        topics: names of the topics to look after; None is all.
        schedule_id: look after this schedule alone, and as far as its reach; None is all.
        topics: names of the topics to look after; None is all.
        schedule_id: look after this schedule alone, and as far as its reach; None is all.

    Raises:
        DueWheelError, psycopg2.Error: the database cannot be asked.
    """
    stuck: list[int] = []
    pause = LONGEST_PAUSE
    while True:
        parameters = (
            HORIZON,
            LONGEST_PAUSE,
            SCHEDULES_AT_ONCE,
            None if topics is None else list(topics),
            schedule_id,
            now,
            stuck,
        )
        found = [_DueSchedule(*row) for row in fetch(connection, _DUE, parameters)]
        done = _send_all(connection, found, now, is_one=schedule_id is not None)
        pause = min(pause, done.pause)
        if done.sent or len(found) < SCHEDULES_AT_ONCE:
            return done._replace(pause=pause)
        # The next schedules must not wait for those that cannot be sent or that another session holds.
        stuck += [due.schedule_id for due in found]


def _send_all(
    connection: DriverConnection, found: Sequence[_DueSchedule], now: datetime | None, *, is_one: bool
) -> Round:
    sent = 0
    more = False
    pause = LONGEST_PAUSE
    for due in found:
        notice = due.reach if is_one else due.reach / 2
        if due.restarts_at is None and due.next_at > due.now_at + notice:
            pause = min(pause, due.next_at - due.now_at - notice)
            continue
        try:
            planned, count = _send_one(connection, due, now)
        except (DueWheelError, psycopg2.Error) as error:
            if connection.closed:
                raise
            log.warning("Schedule %s cannot be sent; it is tried again: %s", due.name, said(error))
            continue
        if count is None:
            # Another session sends, or changes, this schedule.
            continue
        sent += count
        if planned.next_at is not None:
            if planned.next_at <= due.now_at + due.reach and count:
                more = True
            else:
                pause = min(pause, max(timedelta(0), planned.next_at - due.now_at - due.reach / 2))
    # A schedule that a full round has left out is in the next.
    return Round(sent, more or (len(found) == SCHEDULES_AT_ONCE and sent > 0), pause)


def _send_one(
    connection: DriverConnection, due: _DueSchedule, now: datetime | None
) -> tuple[Plan, int | None]:
    every = None if due.every_us is None else timedelta(microseconds=due.every_us)
    rule = rule_of(due.cron, every, due.timezone, due.anchor_at)
    # No rule ends between the instant of a restart and the next occurrence that is stored.
    next_at = (due.restarts_at and rule.first_from(due.restarts_at)) or due.next_at
    planned = plan(rule, next_at, due.now_at, due.now_at + due.reach, Misfire(due.misfire))
    parameters = (due.schedule_id, due.generation, due.next_at, planned.occurrences, planned.next_at, now)
    ((count,),) = fetch(connection, _ADVANCE, parameters)
    if count is not None and due.next_at < due.now_at - GRACE and due.misfire != Misfire.ALL:
        resumed_at = planned.occurrences[0] if planned.occurrences else planned.next_at
        if resumed_at != due.next_at:
            log.warning(
                "Schedule %s was not sent in time: its occurrences from %s to before %s are skipped (%s)",
                due.name,
                due.next_at,
                resumed_at,
                due.misfire,
            )
    return planned, count


def rule_of(cron: str | None, every: timedelta | None, timezone: str, anchor: datetime) -> Rule:
    if cron is not None:
        return Cron(cron, timezone)
    if every is None:
        raise InvalidSchedule(
            f"a schedule needs cron, or every from {said_span(SHORTEST_EVERY)} to {said_span(LONGEST_EVERY)}"
        )
    return Every(every, anchor)
