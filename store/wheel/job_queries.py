"""The statements of a wheel's jobs, and the conversion of their rows into answers."""

from __future__ import annotations

import logging
import time
from collections.abc import Set
from typing import Any, Final

from psycopg2 import extensions

from duewheel.store.database.connections import fetch, translating_errors
from duewheel.store.database.database_clock import ClockReading
from duewheel.store.database.notices import LAST_TOPIC_ID
from duewheel.store.database.prepared import Prepared
from duewheel.store.operations import occurrences
from duewheel.store.wheel import upkeep
from duewheel.store.wheel.job_connection import JobConnection
from duewheel.store.wheel.wheel_schedule import (
    Answer,
    DoneAnswer,
    DueInstant,
    FollowUp,
    FollowUpAnswer,
    Job,
    LeaseEnd,
    Maintain,
    PauseAnswer,
    Poll,
    PollAnswer,
    Revive,
    Scan,
    SendOccurrences,
    Tick,
    TickAnswer,
)

log = logging.getLogger(__name__)

#: How far back a poll reaches. A scan finds messages that were due before that and were committed only now.
LOOKBACK_SECONDS: Final = 600.0

#: How far a poll reaches for ends of leases, in either direction: further than the time between two polls,
#: and less than the look-ahead, because each lease that ends in that time has a cost, answered or not.
LEASE_REACH_POLLS: Final = 3.0

#: How many topics a scan reads at once: a page takes milliseconds.
TOPICS_PER_PAGE: Final = 500

#: Ended leases are revived in transactions of 200; leases left after so many transactions wait for the next
#: poll.
CHUNKS_PER_REVIVE: Final = 20

_CLOCK = "SELECT (extract(epoch FROM pg_catalog.clock_timestamp()) * 1000)::double precision"

# Reaches back to the previous poll, if that is longer ago.
_POLL = """
SELECT d.topic_id, duewheel.unix_micros(d.due_at), (extract(epoch FROM d.granularity) * 1000000)::bigint
FROM duewheel.due_soon(
    least(pg_catalog.clock_timestamp() - %(lookback)s * interval '1 second',
          pg_catalog.to_timestamp(%(polled_at)s::float8)),
    pg_catalog.clock_timestamp() + %(lookahead)s * interval '1 second') d
"""

_LEASE_ENDS = """
SELECT l.group_id, l.topic_id, duewheel.unix_micros(l.expires_at)
FROM duewheel.lease_ends(
    least(pg_catalog.clock_timestamp() - %(reach)s * interval '1 second',
          pg_catalog.to_timestamp(%(polled_at)s::float8)),
    pg_catalog.clock_timestamp() + %(reach)s * interval '1 second') l
"""

_SCAN = """
SELECT d.topic_id, duewheel.unix_micros(d.due_at), (extract(epoch FROM d.granularity) * 1000000)::bigint
FROM duewheel.due_topics(
    %(after)s, %(page)s, NULL, pg_catalog.clock_timestamp() + %(lookahead)s * interval '1 second') d
"""

_LEASE_ENDS_OF_TOPICS = """
SELECT l.group_id, l.topic_id, duewheel.unix_micros(l.expires_at)
FROM duewheel.lease_ends_of_topics(
    %(after)s, %(last)s, pg_catalog.clock_timestamp() + %(lookahead)s * interval '1 second') l
"""

_UNSETTLED_TOPICS = "SELECT u FROM duewheel.unsettled_topics_between(%(after)s, %(last)s) u"

# A topic's retries and dead letters belong to it.
_TOPICS = """
SELECT t.topic_id FROM duewheel.topic t LEFT JOIN duewheel.topic parent ON parent.topic_id = t.parent_topic_id
WHERE coalesce(parent.name, t.name) = ANY (%(topics)s)
"""

# statement_timestamp(): when the request arrived, before the tick reads its clock. Messages due by then are
# released.
_TICK = Prepared(
    "duewheel_tick",
    """
SELECT duewheel.unix_micros(statement_timestamp()), t.released, duewheel.unix_micros(t.hi), t.unsettled,
       t.busy, t.more,
       (SELECT (extract(epoch FROM granularity) * 1000000)::bigint
        FROM duewheel.topic WHERE topic_id = q.topic_id AND deleted_at IS NULL),
       CASE WHEN NOT t.released THEN (
           SELECT min(duewheel.unix_micros(d.due_at)) FROM duewheel.due_topics(
               q.topic_id - 1, 1, NULL, pg_catalog.clock_timestamp() + q.lookahead * interval '1 second') d
           WHERE d.topic_id = q.topic_id) END
FROM (SELECT %s::integer, %s::double precision) q (topic_id, lookahead)
CROSS JOIN LATERAL duewheel.tick_topic(q.topic_id) t
""",
)

_FOLLOW_UP = "SELECT u.topic_id, u.is_late FROM duewheel.unsettled_topics(%(topic_ids)s) u"

_REVIVE = "SELECT more FROM duewheel.revive_chunk(%(group_id)s, %(topic_id)s)"


class JobQueries:
    """Runs each job's statements.

    Args:
        poll_seconds, lookahead_seconds, topics: see :class:`duewheel.store.wheel.runner.WheelRunner`.
        pace: the pace of upkeep.
        prepare: whether the tick is prepared, in sessions that are the wheel's own.
    """

    def __init__(
        self,
        poll_seconds: float,
        lookahead_seconds: float,
        topics: list[str] | None,
        pace: upkeep.Pace,
        *,
        prepare: bool,
    ) -> None:
        self._prepare = prepare
        self._lookahead_seconds = lookahead_seconds
        self._lease_reach_seconds = min(LEASE_REACH_POLLS * poll_seconds, lookahead_seconds)
        self._topics = topics
        self._pace = pace
        # The database's clock at the newest poll that was answered, in seconds.
        self._polled_at: float | None = None
        # The last topic that the scan has read.
        self._scanned_topic_id = 0

    @property
    def asks_for_all_topics(self) -> bool:
        """Whether the wheel looks after every topic."""
        return self._topics is None

    def ask(self, connection: JobConnection, job: Job) -> Answer:
        """Run a job on a connection and return the answer."""
        match job:
            case Poll():
                return self._poll(connection)
            case Scan():
                return self._scan(connection)
            case Tick(topic_id):
                return self._tick(connection, topic_id)
            case FollowUp(topic_ids):
                found = _rows(connection, _FOLLOW_UP, topic_ids=list(topic_ids))
                return FollowUpAnswer(
                    late=frozenset(topic_id for topic_id, is_late in found if is_late),
                    unsettled=frozenset(topic_id for topic_id, is_late in found if not is_late),
                )
            case Revive(group_id, topic_id):
                for _ in range(CHUNKS_PER_REVIVE):
                    ((more,),) = _rows(connection, _REVIVE, group_id=group_id, topic_id=topic_id)
                    if not more:
                        break
            case Maintain():
                done, pause_seconds = self._pace.step(
                    lambda state, rows: fetch(connection, upkeep.STEP, (state, rows, None))[0][0]
                )
                if done is not None:
                    upkeep.warn(done, log)
                    log.info(
                        "Maintained the slots of messages; dropped: %s", ", ".join(done.dropped) or "none"
                    )
                return PauseAnswer(pause_seconds * 1_000, is_step=done is None)
            case SendOccurrences():
                one_round = occurrences.send_occurrences(connection, topics=self._topics)
                pause = 0.0 if one_round.more else one_round.pause.total_seconds()
                return PauseAnswer(pause * 1_000)
        return DoneAnswer()

    def _poll(self, connection: extensions.connection) -> PollAnswer:
        reading = _clock(connection)
        due = _rows(
            connection,
            _POLL,
            lookback=LOOKBACK_SECONDS,
            lookahead=self._lookahead_seconds,
            polled_at=self._polled_at,
        )
        ends = _rows(connection, _LEASE_ENDS, reach=self._lease_reach_seconds, polled_at=self._polled_at)
        answer = self._found(connection, reading, due, ends)
        self._polled_at = reading.database_ms / 1_000
        return answer

    def _scan(self, connection: extensions.connection) -> PollAnswer:
        reading = _clock(connection)
        after = self._scanned_topic_id
        page = _rows(connection, _SCAN, after=after, page=TOPICS_PER_PAGE, lookahead=self._lookahead_seconds)
        # A full page ends with its last topic and no instant.
        is_full = bool(page) and page[-1][1] is None
        last = page[-1][0] if is_full else LAST_TOPIC_ID
        ends = _rows(
            connection, _LEASE_ENDS_OF_TOPICS, after=after, last=last, lookahead=self._lookahead_seconds
        )
        unsettled = {topic_id for (topic_id,) in _rows(connection, _UNSETTLED_TOPICS, after=after, last=last)}
        answer = self._found(connection, reading, page, ends, unsettled, more=is_full)
        self._scanned_topic_id = last if is_full else 0
        return answer

    def _found(
        self,
        connection: extensions.connection,
        reading: ClockReading,
        due: list[tuple[Any, ...]],
        ends: list[tuple[Any, ...]],
        unsettled: Set[int] = frozenset(),
        *,
        more: bool = False,
    ) -> PollAnswer:
        """The findings about the topics that this wheel looks after."""
        watched: frozenset[int] | None = None
        if self._topics is not None:
            watched = frozenset(topic_id for (topic_id,) in _rows(connection, _TOPICS, topics=self._topics))
        return PollAnswer(
            reading,
            [
                DueInstant(topic_id, due_at_us, granularity_us)
                for topic_id, due_at_us, granularity_us in due
                if due_at_us is not None and (watched is None or topic_id in watched)
            ],
            [LeaseEnd(*end) for end in ends if watched is None or end[1] in watched],
            frozenset(unsettled if watched is None else unsettled & watched),
            watched,
            more,
        )

    def _tick(self, connection: JobConnection, topic_id: int) -> TickAnswer | DoneAnswer:
        prepare = self._prepare and connection.prepares
        statement = connection.text_of(_TICK) if prepare else _TICK.text
        sent_ms = monotonic_ms()
        ((asked_at_us, released, hi_us, unsettled, busy, more, granularity_us, next_due_us),) = fetch(
            connection, statement, (topic_id, self._lookahead_seconds)
        )
        if granularity_us is None:
            # The topic does not exist.
            return DoneAnswer()
        return TickAnswer(
            reading=ClockReading(asked_at_us / 1_000, sent_ms, monotonic_ms()),
            asked_at_us=asked_at_us,
            released=released,
            hi_us=hi_us,
            unsettled=unsettled,
            busy=busy,
            more=more,
            granularity_us=granularity_us,
            next_due_us=next_due_us,
        )


def _clock(connection: extensions.connection) -> ClockReading:
    """The database's clock, read alone, because a faster answer is more exact."""
    sent_ms = monotonic_ms()
    ((database_ms,),) = _rows(connection, _CLOCK)
    return ClockReading(database_ms, sent_ms, monotonic_ms())


def _rows(connection: extensions.connection, statement: str, **parameters: object) -> list[tuple[Any, ...]]:
    with translating_errors(connection), connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        return cursor.fetchall()


def monotonic_ms() -> float:
    """The process's monotonic clock in milliseconds."""
    return time.monotonic() * 1_000
