"""Schedules: one message for each occurrence of a cron expression or a fixed interval.

The database keeps the schedules and sends. It cannot work out when a schedule next occurs on the wall clock
of a time zone; this module does. The next occurrence is sent a little ahead, at most `HORIZON` before it is
due, as an ordinary delay message, which the wheel then releases to the millisecond. Each step names the
occurrence from which it was worked out, and the database takes the step only while that is still the next
one. So any number of wheels may do the same, and any of them may be killed at any point.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final, NamedTuple

import psycopg2

from duewheel.store.database.connections import Database, DriverConnection, fetch
from duewheel.store.values.bodies import check_text, properties_to_json, to_bytes
from duewheel.store.values.cron import LONGEST_EVERY, SHORTEST_EVERY, Cron, Every, Rule, normal, zone
from duewheel.store.values.errors import DueWheelError, InvalidSchedule, said
from duewheel.store.values.instants import Instant, to_datetime, to_span
from duewheel.store.values.messages import named

log = logging.getLogger(__name__)

#: How far ahead occurrences are sent; less on a topic whose `max_delay` is less.
HORIZON: Final = timedelta(seconds=60)
#: An occurrence that is later than this when its turn to be sent comes is a misfire.
GRACE: Final = timedelta(seconds=60)
#: The longest time between two looks at the schedules.
LONGEST_PAUSE: Final = timedelta(seconds=2)
#: How many occurrences of a schedule are sent in one transaction, and how many schedules have a turn in a
#: round.
OCCURRENCES_AT_ONCE: Final = 200
SCHEDULES_AT_ONCE: Final = 500

_ADD = """
select schedule_id, added from duewheel.add_schedule(
    name => %s, topic => %s, body => %s, cron => %s, every => %s, time_zone => %s, start_at => %s,
    misfire => %s, key => %s, tag => %s, properties => %s::jsonb, anchor_at => %s, next_at => %s, now => %s)
"""

_NOW = "select coalesce(%s, clock_timestamp())"

_SCHEDULES = """
select name, topic, cron, (extract(epoch from every) * 1000000)::bigint, time_zone, start_at, misfire, body,
    key, tag, properties, paused_at, next_at, last_at, last_message_id, created_at
from duewheel.schedules(%s)
"""

_DUE = """
select schedule_id, generation, name, cron, (extract(epoch from every) * 1000000)::bigint, time_zone,
    anchor_at, misfire, next_at, (extract(epoch from reach) * 1000000)::bigint, now_at
from duewheel.due_schedules(%s, %s, %s, %s, %s, %s)
"""

_ADVANCE = "select duewheel.advance_schedule(%s, %s, %s, %s::timestamptz[], %s, %s)"

_PAUSED = """
select schedule_id, generation, cron, (extract(epoch from every) * 1000000)::bigint, time_zone, anchor_at,
    start_at, resumes_after
from duewheel.paused_schedule(%s, %s)
"""


class Misfire(StrEnum):
    """The treatment of occurrences that no wheel sent in time: more than a minute late."""

    SKIP = "skip"
    """They are passed over; those at most a minute late are sent."""
    ONCE = "once"
    """Of all that have passed, only the last is sent."""
    ALL = "all"
    """Each of them is sent, in order."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule and its progress.

    Attributes:
        name: its name, unique in the broker.
        topic: the topic it sends to.
        cron: the cron expression, or None.
        every: the interval, or None.
        timezone: the zone of the cron expression's wall clock.
        misfire: the treatment of occurrences that were not sent in time.
        paused: whether it is paused.
        next_at: the next occurrence, in UTC; None while it is paused.
        last_at: the newest occurrence that was sent and has come due, in UTC; None before the first.
        last_message_id: the id of that occurrence's message.
        start_at: no occurrence is before it; None if it was not given.
        paused_at: since when it is paused.
        body, key, tag, properties: the fields of its messages.
        created_at: when it was added, in UTC.
    """

    name: str
    topic: str
    cron: str | None
    every: timedelta | None
    timezone: str
    misfire: Misfire
    paused: bool
    next_at: datetime | None
    last_at: datetime | None
    last_message_id: str | None
    start_at: datetime | None
    paused_at: datetime | None
    body: bytes
    key: str | None
    tag: str | None
    properties: Mapping[str, Any] | None
    created_at: datetime


class Plan(NamedTuple):
    """The occurrences of a schedule to send now, and the one after them."""

    occurrences: list[datetime]
    next_at: datetime | None


class Round(NamedTuple):
    """The result of a round over the schedules.

    ``sent`` counts messages, ``more`` says that there was more to send than a round takes, and ``pause`` is
    the time for which there is nothing to send.
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
    time_zone: str
    anchor_at: datetime
    misfire: str
    next_at: datetime
    reach_us: int
    now_at: datetime

    @property
    def reach(self) -> timedelta:
        return timedelta(microseconds=self.reach_us)


def plan(rule: Rule, next_at: datetime, now: datetime, until: datetime, misfire: Misfire) -> Plan:
    """The plan of a schedule up to an instant; pure.

    Args:
        rule: when it occurs.
        next_at: its next occurrence that has not been sent.
        now: the instant it is.
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


def add_schedule(
    database: Database,
    name: str,
    topic: str,
    body: object,
    *,
    cron: str | None,
    every: timedelta | None,
    timezone: str,
    start_at: Instant | None,
    misfire: Misfire | str,
    key: str | None,
    tag: str | None,
    properties: Mapping[str, Any] | None,
) -> None:
    """Add a schedule; see :meth:`duewheel.store.broker.Broker.add_schedule`."""
    check_text(name, "name")
    check_text(topic, "topic")
    check_text(cron, "cron", optional=True)
    check_text(key, "key", optional=True)
    check_text(tag, "tag", optional=True)
    if not isinstance(timezone, str):
        raise InvalidSchedule(
            f"timezone is a {type(timezone).__name__}: give a name of the IANA database, such as "
            "'Europe/Berlin'"
        )
    if (cron is None) == (every is None):
        given = "both are given" if cron is not None else "neither is given"
        raise InvalidSchedule(f"a schedule has either cron or every, and {given}: give one of them")
    zone(timezone)
    expression = None if cron is None else normal(cron)
    span = None if every is None else to_span(every, "every")
    begins = None if start_at is None else to_datetime(start_at, "start_at")
    now = _now(database)
    anchor = now if begins is None else begins
    if begins is not None and begins > now + LONGEST_EVERY:
        raise InvalidSchedule(
            f"start_at is {begins}; the limit is 3660 days from now: give an earlier instant"
        )
    rule = _rule(expression, span, timezone, anchor)
    # A schedule that begins now fires for the first time an interval from now.
    next_at = rule.next_after(now) if begins is None else rule.first_from(max(begins, now))
    ((schedule_id, added),) = database.rows(
        _ADD,
        (
            name,
            topic,
            psycopg2.Binary(to_bytes(body)),
            expression,
            span,
            timezone,
            begins,
            named(Misfire, misfire, "misfire").value,
            key,
            tag,
            properties_to_json(properties),
            anchor,
            next_at,
            database.now(),
        ),
    )
    if added:
        with database.lend() as connection:
            send_occurrences(connection, now=database.now(), schedule_id=schedule_id)


def schedules(database: Database) -> list[Schedule]:
    """All schedules by name; see :meth:`duewheel.store.broker.Broker.schedules`."""
    return [
        Schedule(
            name=name,
            topic=topic,
            cron=cron,
            every=None if every is None else timedelta(microseconds=every),
            timezone=time_zone,
            misfire=Misfire(misfire),
            paused=paused_at is not None,
            next_at=_utc(next_at),
            last_at=_utc(last_at),
            last_message_id=last_message_id,
            start_at=_utc(start_at),
            paused_at=_utc(paused_at),
            body=bytes(body),
            key=key,
            tag=tag,
            properties=properties,
            created_at=to_datetime(created_at),
        )
        for (
            name,
            topic,
            cron,
            every,
            time_zone,
            start_at,
            misfire,
            body,
            key,
            tag,
            properties,
            paused_at,
            next_at,
            last_at,
            last_message_id,
            created_at,
        ) in database.read(_SCHEDULES, (database.now(),))
    ]


def remove_schedule(database: Database, name: str) -> None:
    """Remove a schedule; see :meth:`duewheel.store.broker.Broker.remove_schedule`."""
    check_text(name, "name")
    database.rows("select duewheel.remove_schedule(%s, %s)", (name, database.now()))


def pause_schedule(database: Database, name: str) -> None:
    """Pause a schedule; see :meth:`duewheel.store.broker.Broker.pause_schedule`."""
    check_text(name, "name")
    database.rows("select duewheel.pause_schedule(%s, %s)", (name, database.now()))


def resume_schedule(database: Database, name: str) -> None:
    """Resume a schedule; see :meth:`duewheel.store.broker.Broker.resume_schedule`."""
    check_text(name, "name")
    rows = database.rows(_PAUSED, (name, database.now()))
    if not rows:
        return
    ((schedule_id, generation, cron, every, time_zone, anchor_at, start_at, resumes_after),) = rows
    rule = _rule(cron, None if every is None else timedelta(microseconds=every), time_zone, anchor_at)
    next_at = rule.next_after(resumes_after)
    if start_at is not None and start_at > resumes_after:
        next_at = rule.first_from(start_at)
    # Where another program has resumed it in the meantime, nothing is left to do.
    database.rows("select duewheel.resume_schedule(%s, %s, %s)", (schedule_id, generation, next_at))
    with database.lend() as connection:
        send_occurrences(connection, now=database.now(), schedule_id=schedule_id)


def advance_schedules(database: Database) -> int:
    """Send the occurrences within reach; see :meth:`duewheel.store.broker.Broker.advance_schedules`."""
    sent = 0
    with database.lend() as connection:
        while True:
            one_round = send_occurrences(connection, now=database.now())
            sent += one_round.sent
            if not one_round.more:
                return sent


def send_occurrences(
    connection: DriverConnection,
    *,
    now: datetime | None = None,
    topics: Sequence[str] | None = None,
    schedule_id: int | None = None,
) -> Round:
    """One round over the schedules: sends the occurrences within reach, those that waited longest first.

    A schedule is sent ahead as soon as its next occurrence is nearer than half of its reach, and then up to
    the whole of it, so one that fires every second has its turn twice a minute. A schedule that cannot be
    sent is logged and does not stop the others.

    Args:
        connection: an autocommit connection; each schedule is a transaction of its own.
        now: the instant it is; None is the database's clock.
        topics: names of the topics to look after; None is all.
        schedule_id: look after this schedule alone, and as far as its reach; None is all.

    Raises:
        DueWheelError, psycopg2.Error: the database cannot be asked.
    """
    parameters = (
        HORIZON,
        LONGEST_PAUSE,
        SCHEDULES_AT_ONCE,
        None if topics is None else list(topics),
        schedule_id,
        now,
    )
    found = fetch(connection, _DUE, parameters)
    sent = 0
    more = False
    pause = LONGEST_PAUSE
    for row in found:
        due = _DueSchedule(*row)
        notice = due.reach if schedule_id is not None else due.reach / 2
        if due.next_at > due.now_at + notice:
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
            # Another program is sending this schedule.
            continue
        sent += count
        if planned.next_at is not None:
            if planned.next_at <= due.now_at + due.reach and count:
                more = True
            else:
                pause = min(pause, max(timedelta(0), planned.next_at - due.now_at - due.reach / 2))
    # A schedule without a turn in a full round has one in the next.
    more = more or (len(found) == SCHEDULES_AT_ONCE and sent > 0)
    return Round(sent, more, pause)


def _send_one(
    connection: DriverConnection, due: _DueSchedule, now: datetime | None
) -> tuple[Plan, int | None]:
    every = None if due.every_us is None else timedelta(microseconds=due.every_us)
    rule = _rule(due.cron, every, due.time_zone, due.anchor_at)
    planned = plan(rule, due.next_at, due.now_at, due.now_at + due.reach, Misfire(due.misfire))
    parameters = (due.schedule_id, due.generation, due.next_at, planned.occurrences, planned.next_at, now)
    ((count,),) = fetch(connection, _ADVANCE, parameters)
    if count is not None and due.next_at < due.now_at - GRACE and due.misfire != Misfire.ALL:
        resumed_at = planned.occurrences[0] if planned.occurrences else planned.next_at
        if resumed_at != due.next_at:
            log.warning(
                "Schedule %s was not sent in time: its occurrences from %s to before %s are passed over (%s)",
                due.name,
                due.next_at,
                resumed_at,
                due.misfire,
            )
    return planned, count


def _rule(cron: str | None, every: timedelta | None, time_zone: str, anchor: datetime) -> Rule:
    if cron is not None:
        return Cron(cron, time_zone)
    if every is None:
        raise InvalidSchedule(f"a schedule needs cron, or every from {SHORTEST_EVERY} to {LONGEST_EVERY}")
    return Every(every, anchor)


def _now(database: Database) -> datetime:
    ((now,),) = database.read(_NOW, (database.now(),))
    return to_datetime(now)


def _utc(instant: datetime | None) -> datetime | None:
    return None if instant is None else to_datetime(instant)
