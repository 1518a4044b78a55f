"""Schedules: one message for each occurrence of a cron expression or a fixed interval.

They are sent by :mod:`duewheel.store.operations.occurrences`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import psycopg2

from duewheel.store.database.connected import Connected
from duewheel.store.database.connections import Database
from duewheel.store.operations.recalling import decided
from duewheel.store.values.bodies import check_text, properties_to_json, to_bytes
from duewheel.store.values.content_types import with_content_type
from duewheel.store.values.errors import InvalidSchedule
from duewheel.store.values.instants import Instant, microseconds_to_span, to_datetime, to_span
from duewheel.store.values.kinds import a_kind
from duewheel.store.values.messages import named
from duewheel.store.values.records import records

if TYPE_CHECKING:
    from duewheel.store.values.schedules import Misfire, Schedule

_CREATE = """
select schedule_id, created from duewheel.create_schedule(
    name => %s, topic => %s, body => %s, cron => %s, every => %s, timezone => %s, start_at => %s,
    misfire => %s, key => %s, tag => %s, properties => %s::jsonb, anchor_at => %s, next_at => %s, now => %s)
"""

_NOW = "select coalesce(%s, pg_catalog.clock_timestamp())"

_SCHEDULES = """
select name, topic, cron, (extract(epoch from every) * 1000000)::bigint, timezone, misfire,
    paused_at is not null, next_at, last_at, last_message_id, start_at, paused_at, body, key, tag, properties,
    created_at
from duewheel.schedules(%s)
"""

_PAUSED = """
select schedule_id, generation, cron, (extract(epoch from every) * 1000000)::bigint, timezone, anchor_at,
    start_at, resumes_after
from duewheel.paused_schedule(%s, %s)
"""


class Schedules(Connected):
    """The operations on schedules."""

    def create_schedule(
        self,
        name: str,
        topic: str,
        body: object,
        *,
        cron: str | None = None,
        every: timedelta | None = None,
        timezone: str = "UTC",
        start_at: Instant | None = None,
        misfire: Misfire | str = "once",
        key: str | None = None,
        tag: str | None = None,
        properties: Mapping[str, Any] | None = None,
    ) -> None:
        """Send a message again and again; the same schedule may be created again.

        A wheel sends each occurrence up to 60 s ahead, as an ordinary delay message: exactly one for each,
        with any number of wheels and through crashes. The properties of the message hold the name of the
        ``schedule`` and the ``occurrence`` as ISO 8601 in UTC, whenever it is delivered. All occurrences of a
        schedule are sent to the same queue, so they are read in order.

        Args:
            name: 1 to 127 letters, digits, dots, hyphens and underscores; unique in the broker.
            topic: the topic to send to, of type DELAY.
            body: see :meth:`send`.
            cron: five fields, minute, hour, day of month, month and day of week, or ``@daily`` and the like.
                The schedule occurs at every instant whose local time matches. A wall time that the clocks
                show twice counts twice; a wall time that they skip does not count. If both days are given,
                one of them has to match.
            every: or an interval of 1 s to 3660 days, in absolute time.
            timezone: the zone of the cron expression, by its IANA name.
            start_at: no occurrence before this instant, up to 3660 days ahead; intervals are counted from it.
                None is now, so that the first interval ends ``every`` from now.
            misfire: the treatment of occurrences that no wheel sent until a minute after they were due:
                "skip" sends none of them, "once" only the last that has passed, "all" each of them.
            key, tag, properties: of each message; see :meth:`send`. ``schedule`` and ``occurrence`` cannot be
                names of properties.

        Raises:
            InvalidSchedule: an invalid expression, zone or interval, or not exactly one of ``cron`` and
                ``every``.
            ExtraMissing: a cron expression, and the extra ``schedules`` is not installed.
            ScheduleExists: a schedule of this name has other settings; the message says which.
            UnknownTopic, WrongMessageType, BodyTooLarge, PropertiesTooLarge, InvalidKey, InvalidTag,
                InvalidInstant, InvalidArgument: see :meth:`send`.

        Example::

            broker.create_schedule("clean-up", "files", b"", cron="0 5 * * *", timezone="Europe/Berlin")
            broker.create_schedule("push", "messages", b"", every=timedelta(minutes=2))
        """
        from duewheel.store.operations.occurrences import rule_of, send_occurrences
        from duewheel.store.values.cron import LONGEST_EVERY, normal, zone
        from duewheel.store.values.schedules import Misfire

        check_text(name, "name")
        check_text(topic, "topic")
        check_text(cron, "cron", optional=True)
        check_text(key, "key", optional=True)
        check_text(tag, "tag", optional=True)
        if not isinstance(timezone, str):
            raise InvalidSchedule(
                f"timezone is {a_kind(timezone)}: give a name of the IANA database, such as 'Europe/Berlin'"
            )
        if (cron is None) == (every is None):
            given = "both are given" if cron is not None else "neither is given"
            raise InvalidSchedule(f"a schedule has either cron or every, and {given}: give one of them")
        zone(timezone)
        expression = None if cron is None else normal(cron)
        span = None if every is None else to_span(every, "every")
        begins = None if start_at is None else to_datetime(start_at, "start_at")
        now = _now(self._database)
        anchor = now if begins is None else begins
        if begins is not None and begins > now + LONGEST_EVERY:
            raise InvalidSchedule(
                f"start_at must be at most 3660 days from now; got {begins}: give an earlier instant"
            )
        rule = rule_of(expression, span, timezone, anchor)
        # A schedule that begins now fires for the first time an interval from now.
        next_at = rule.next_after(now) if begins is None else rule.first_from(max(begins, now))
        ((schedule_id, created),) = self._database.rows(
            _CREATE,
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
                properties_to_json(with_content_type(body, properties)),
                anchor,
                next_at,
                self._database.now(),
            ),
        )
        if created:
            with self._database.lend() as connection:
                send_occurrences(connection, now=self._database.now(), schedule_id=schedule_id)

    def schedules(self) -> list[Schedule]:
        """All schedules with their next occurrences, by name."""
        from duewheel.store.values.schedules import Misfire, Schedule

        rows = self._database.read(_SCHEDULES, (self._database.now(),))
        return records(Schedule, rows, every=microseconds_to_span, misfire=Misfire, body=bytes)

    def delete_schedule(self, name: str) -> None:
        """Delete a schedule and recall messages it has sent ahead; messages that are due are delivered.

        Raises:
            UnknownSchedule: no schedule has this name.
        """
        check_text(name, "name")
        delete = "select duewheel.delete_schedule(%s, %s)"
        decided(lambda: self._database.rows(delete, (name, self._database.now())))

    def pause_schedule(self, name: str) -> None:
        """Pause a schedule and recall messages it has sent ahead; no effect on a paused one.

        Raises:
            UnknownSchedule: no schedule has this name.
        """
        check_text(name, "name")
        pause = "select duewheel.pause_schedule(%s, %s)"
        decided(lambda: self._database.rows(pause, (name, self._database.now())))

    def resume_schedule(self, name: str) -> None:
        """Resume a paused schedule from now; occurrences during the pause are not made up for.

        Raises:
            UnknownSchedule: no schedule has this name.
        """
        from duewheel.store.operations.occurrences import rule_of, send_occurrences

        check_text(name, "name")
        rows = self._database.rows(_PAUSED, (name, self._database.now()))
        if not rows:
            return
        ((schedule_id, generation, cron, every, timezone, anchor_at, start_at, resumes_after),) = rows
        rule = rule_of(cron, None if every is None else microseconds_to_span(every), timezone, anchor_at)
        next_at = rule.next_after(resumes_after)
        if start_at is not None and start_at > resumes_after:
            next_at = rule.first_from(start_at)
        # If another program has resumed it in the meantime, nothing is left to do.
        resume = "select duewheel.resume_schedule(%s, %s, %s, %s)"
        self._database.rows(resume, (schedule_id, generation, next_at, self._database.now()))
        with self._database.lend() as connection:
            send_occurrences(connection, now=self._database.now(), schedule_id=schedule_id)

    def advance_schedules(self) -> int:
        """Send the next messages of all schedules that are due within 30 s; the wheel does so in time.

        For tests, and for programs without a wheel, which call this at least twice a minute. Any number of
        callers and wheels send each occurrence once.

        Returns:
            How many messages were sent.
        """
        from duewheel.store.operations.occurrences import send_occurrences

        sent = 0
        with self._database.lend() as connection:
            while True:
                one_round = send_occurrences(connection, now=self._database.now())
                sent += one_round.sent
                if not one_round.more:
                    return sent


def _now(database: Database) -> datetime:
    ((now,),) = database.read(_NOW, (database.now(),))
    return to_datetime(now)
