"""The wheel at work: releases messages at their instant, and wakes up for nothing else.

`WheelRunner` carries out the decisions of `duewheel.store.wheel.wheel_schedule`. It makes releases punctual
and nothing more. Without a wheel, receivers release due messages. With two wheels, the second finds nothing
to do. A wheel that is killed at any point leaves a transaction that was committed or was not. So the wheel
holds no lock, keeps no state that matters, and may be started, doubled and killed at will.

One event loop decides, and worker threads ask the database. psycopg2 blocks, so each job runs in a thread on
a connection of its own; LISTEN sits on the event loop. The server ends a job that takes longer than its time.
Where it does not, the wheel cancels the job and then shuts the connection, so a job that waits for a lock
leaves no server process behind. A failed job is logged and tried again after a pause; only being stopped ends
the wheel.

Memory holds timers for topics, at most one per granularity within the look-ahead, never messages.
Connections: one to listen, and one per job that runs at once, at most nine; an idle wheel looks once per
`poll_seconds`, and at the recurring schedules every 2 s.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import selectors
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, Final

import psycopg2
from psycopg2 import extensions

from duewheel.store.database import notices, schema
from duewheel.store.database.connections import (
    OWN_TRANSACTION,
    fetch,
    libpq_dsn,
    of_the_transaction,
    take_session,
    translating_errors,
)
from duewheel.store.database.database_clock import ClockReading
from duewheel.store.database.listening import GAP, Notification, NotificationListener, connect
from duewheel.store.database.notices import DUE_CHANNEL, LAST_TOPIC_ID, RELEASED_CHANNEL
from duewheel.store.database.prepared import Prepared
from duewheel.store.database.watchdog import WatchedConnection, WatchedCursor
from duewheel.store.operations import occurrences
from duewheel.store.values.backoff import Backoff
from duewheel.store.values.errors import said
from duewheel.store.wheel import upkeep
from duewheel.store.wheel.wheel_schedule import (
    LANES,
    Answer,
    DoneAnswer,
    DueInstant,
    FollowUp,
    FollowUpAnswer,
    Job,
    LeaseEnd,
    Look,
    LookAnswer,
    Maintain,
    PauseAnswer,
    Revive,
    SendOccurrences,
    Survey,
    Tick,
    TickAnswer,
    WheelSchedule,
)

log = logging.getLogger(__name__)

#: A sender notifies the wheel of what is due less than 0.6 s after it was sent; looking finds the rest.
POLL_SECONDS: Final = 0.5
#: How long the connection that listens may be silent before it is asked for a sign of life.
SILENCE_SECONDS: Final = 15.0
LOOKAHEAD_SECONDS: Final = 2.0
MAINTAIN_SECONDS: Final = 3_600.0

#: How long a job may take.
TIMEOUT_SECONDS: Final[dict[type[Job], float]] = {
    Look: 15.0,
    Survey: 15.0,
    Tick: 15.0,
    FollowUp: 15.0,
    Revive: 60.0,
    Maintain: 120.0,
    SendOccurrences: 60.0,
}

#: The server ends a job's statements after this share of the job's time. The rest is for its answer. A job
#: without an answer by then asks the server to cancel, several times, since a cancel that meets no statement
#: is lost. After the last it gives up: the server, or the way to it, is gone.
SERVER_SHARE = 0.9
CANCELS: Final = 4
CANCEL_SECONDS: Final = 0.5

#: How long a job waits for a lock. Another session's open transaction holds up a lane for no longer, and
#: others have their turn in between.
LOCK_TIMEOUT_MS: Final = 250

#: How far back a look reaches. A survey finds messages that came due before that and were committed only now.
LOOKBACK_SECONDS: Final = 600.0

#: How far a look reaches for ends of leases, in either direction: further than two looks are apart, and less
#: than the look-ahead, since each lease that was to end in that time costs something, answered or not.
LEASE_REACH_POLLS: Final = 3.0

#: How many topics a survey asks for at once: a page is a matter of milliseconds.
TOPICS_PER_PAGE: Final = 500

#: How long jobs may go on when the wheel is stopped, and how long ending them may then take.
STOP_SECONDS: Final = 2.0

#: Ended leases are revived in transactions of 200; leases left after so many transactions wait for the next
#: look.
CHUNKS_PER_REVIVE: Final = 20

APPLICATION_NAME: Final = "duewheel wheel"

_CLOCK = "SELECT (extract(epoch FROM pg_catalog.clock_timestamp()) * 1000)::double precision"

# Reaches back to the look before, if that is longer ago.
_LOOK = """
SELECT d.topic_id, duewheel.unix_micros(d.due_at), (extract(epoch FROM d.granularity) * 1000000)::bigint
FROM duewheel.due_soon(
    least(pg_catalog.clock_timestamp() - %(lookback)s * interval '1 second',
          pg_catalog.to_timestamp(%(looked_at)s::float8)),
    pg_catalog.clock_timestamp() + %(lookahead)s * interval '1 second') d
"""

_LEASE_ENDS = """
SELECT l.group_id, l.topic_id, duewheel.unix_micros(l.expires_at)
FROM duewheel.lease_ends(
    least(pg_catalog.clock_timestamp() - %(reach)s * interval '1 second',
          pg_catalog.to_timestamp(%(looked_at)s::float8)),
    pg_catalog.clock_timestamp() + %(reach)s * interval '1 second') l
"""

_SURVEY = """
SELECT d.topic_id, duewheel.unix_micros(d.due_at), (extract(epoch FROM d.granularity) * 1000000)::bigint
FROM duewheel.due_topics(
    %(after)s, %(page)s, NULL, pg_catalog.clock_timestamp() + %(lookahead)s * interval '1 second') d
"""

_LEASE_ENDS_OF_TOPICS = """
SELECT l.group_id, l.topic_id, duewheel.unix_micros(l.expires_at)
FROM duewheel.lease_ends_of_topics(
    %(after)s, %(last)s, pg_catalog.clock_timestamp() + %(lookahead)s * interval '1 second') l
"""

# A topic's retries and dead letters belong to it.
_TOPICS = """
SELECT t.topic_id FROM duewheel.topic t LEFT JOIN duewheel.topic parent ON parent.topic_id = t.parent_topic_id
WHERE coalesce(parent.name, t.name) = ANY (%(topics)s)
"""

# statement_timestamp(): when the question came, before the tick reads its clock. Messages due by then are
# out.
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

# Consumers leave releasing to a wheel as long as the connection it listens on is there.
_BEGIN_TURNING = "SELECT duewheel.begin_turning()"

_FOLLOW_UP = "SELECT u.topic_id, u.is_late FROM duewheel.unsettled_topics(%(topic_ids)s) u"

_REVIVE = "SELECT more FROM duewheel.revive_chunk(%(group_id)s, %(topic_id)s)"


class WheelRunner:
    """Releases the messages of a broker at their instants until it is stopped.

    Args:
        dsn: the broker's database.
        poll_seconds: the time between two looks for the next due messages. More than 0.5 s makes messages
            late that are sent between 0.6 s and `poll_seconds` before they are due.
        lookahead_seconds: how far a look reaches; more than `poll_seconds`.
        maintain_seconds: the time between two rounds of maintenance.
        topics: names of the topics to look after, with their retries; None is all of them.
        listen: whether to LISTEN; False where a pooler does not allow it. Then a message sent less than
            `poll_seconds` before it is due is up to `poll_seconds` late.
        on_released: called on the event loop, with the id of the topic, right after messages of it were
            released by this wheel or, when listening, by any other process. It must not block. It may be
            called twice for one release.

    Raises:
        ValueError: times that make no sense.

    Example::

        stop = threading.Event()
        WheelRunner(dsn).run(stop)
    """

    def __init__(
        self,
        dsn: str,
        *,
        poll_seconds: float = POLL_SECONDS,
        lookahead_seconds: float = LOOKAHEAD_SECONDS,
        maintain_seconds: float = MAINTAIN_SECONDS,
        topics: Sequence[str] | None = None,
        listen: bool = True,
        on_released: Callable[[int], None] | None = None,
    ) -> None:
        if not 0 < poll_seconds < lookahead_seconds:
            raise ValueError(
                f"poll_seconds is {poll_seconds} and lookahead_seconds is {lookahead_seconds}: the wheel has "
                "to look further than to its next look; choose 0 < poll_seconds < lookahead_seconds"
            )
        if maintain_seconds <= 0:
            raise ValueError(f"maintain_seconds is {maintain_seconds}: choose more than 0")
        self._dsn = libpq_dsn(dsn)
        self._poll_seconds = poll_seconds
        self._lookahead_seconds = lookahead_seconds
        self._maintain_seconds = maintain_seconds
        self._topics = None if topics is None else list(topics)
        self._listen = listen
        self._on_released = on_released

    def run(self, stop: threading.Event) -> None:
        """Turns the wheel until `stop` is set or the process is interrupted; for a process of its own."""
        with asyncio.Runner(loop_factory=_precise_event_loop) as runner:
            runner.run(self._run_until(stop))

    async def arun(self) -> None:
        """Turns the wheel on the running event loop until cancelled; nothing in it blocks the loop."""
        await _Turning(
            self._dsn,
            schedule=WheelSchedule(
                _monotonic_ms(),
                poll_ms=self._poll_seconds * 1_000,
                lookahead_ms=self._lookahead_seconds * 1_000,
            ),
            questions=_Questions(
                self._poll_seconds,
                self._lookahead_seconds,
                self._topics,
                upkeep.Pace(self._maintain_seconds),
                prepare=self._listen,
            ),
            listen=self._listen,
            on_released=self._on_released,
        ).turn()

    async def _run_until(self, stop: threading.Event) -> None:
        loop = asyncio.get_running_loop()
        stopped = asyncio.Event()

        def watch() -> None:
            stop.wait()
            # The loop is closed when the wheel was interrupted instead.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(stopped.set)

        threading.Thread(target=watch, name="duewheel wheel stop", daemon=True).start()
        turning = asyncio.create_task(self.arun())
        waiting = asyncio.create_task(stopped.wait())
        try:
            await asyncio.wait({turning, waiting}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
            turning.cancel()
            await asyncio.wait({turning, waiting})
        if not turning.cancelled():
            turning.result()


class _Questions:
    """The question of each job to the database."""

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
        # The database's clock at the newest look that was answered, in seconds.
        self._looked_at: float | None = None
        # How far the survey has come.
        self._surveyed_topic_id = 0

    @property
    def asks_for_all_topics(self) -> bool:
        """Whether the wheel looks after every topic."""
        return self._topics is None

    def ask(self, connection: _Connection, job: Job) -> Answer:
        """Carries a job out on a connection and returns the answer."""
        match job:
            case Look():
                return self._look(connection)
            case Survey():
                return self._survey(connection)
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
                    lambda statement: fetch(connection, statement, (None,))[0]
                )
                if done is not None:
                    upkeep.warn(done, log)
                    log.info(
                        "Maintained the slots of messages; dropped: %s", ", ".join(done.dropped) or "none"
                    )
                return PauseAnswer(pause_seconds * 1_000, goes_on=done is None)
            case SendOccurrences():
                one_round = occurrences.send_occurrences(connection, topics=self._topics)
                pause = 0.0 if one_round.more else one_round.pause.total_seconds()
                return PauseAnswer(pause * 1_000)
        return DoneAnswer()

    def _look(self, connection: extensions.connection) -> LookAnswer:
        reading = _clock(connection)
        due = _rows(
            connection,
            _LOOK,
            lookback=LOOKBACK_SECONDS,
            lookahead=self._lookahead_seconds,
            looked_at=self._looked_at,
        )
        ends = _rows(connection, _LEASE_ENDS, reach=self._lease_reach_seconds, looked_at=self._looked_at)
        answer = self._found(connection, reading, due, ends)
        self._looked_at = reading.database_ms / 1_000
        return answer

    def _survey(self, connection: extensions.connection) -> LookAnswer:
        reading = _clock(connection)
        after = self._surveyed_topic_id
        page = _rows(
            connection, _SURVEY, after=after, page=TOPICS_PER_PAGE, lookahead=self._lookahead_seconds
        )
        # A full page ends with its last topic and no instant.
        is_full = bool(page) and page[-1][1] is None
        last = page[-1][0] if is_full else LAST_TOPIC_ID
        ends = _rows(
            connection, _LEASE_ENDS_OF_TOPICS, after=after, last=last, lookahead=self._lookahead_seconds
        )
        answer = self._found(connection, reading, page, ends, more=is_full)
        self._surveyed_topic_id = last if is_full else 0
        return answer

    def _found(
        self,
        connection: extensions.connection,
        reading: ClockReading,
        due: list[tuple[Any, ...]],
        ends: list[tuple[Any, ...]],
        *,
        more: bool = False,
    ) -> LookAnswer:
        """The findings about the topics that this wheel looks after."""
        watched: frozenset[int] | None = None
        if self._topics is not None:
            watched = frozenset(topic_id for (topic_id,) in _rows(connection, _TOPICS, topics=self._topics))
        return LookAnswer(
            reading,
            [
                DueInstant(topic_id, due_at_us, granularity_us)
                for topic_id, due_at_us, granularity_us in due
                if due_at_us is not None and (watched is None or topic_id in watched)
            ],
            [LeaseEnd(*end) for end in ends if watched is None or end[1] in watched],
            watched,
            more,
        )

    def _tick(self, connection: _Connection, topic_id: int) -> TickAnswer | DoneAnswer:
        prepare = self._prepare and connection.prepares
        statement = connection.text_of(_TICK) if prepare else _TICK.text
        sent_ms = _monotonic_ms()
        ((asked_at_us, released, hi_us, unsettled, busy, more, granularity_us, next_due_us),) = fetch(
            connection, statement, (topic_id, self._lookahead_seconds)
        )
        if granularity_us is None:
            # There is no such topic.
            return DoneAnswer()
        return TickAnswer(
            reading=ClockReading(asked_at_us / 1_000, sent_ms, _monotonic_ms()),
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
    """The database's clock, asked for alone, because a faster answer is a better one."""
    sent_ms = _monotonic_ms()
    ((database_ms,),) = _rows(connection, _CLOCK)
    return ClockReading(database_ms, sent_ms, _monotonic_ms())


def _rows(connection: extensions.connection, statement: str, **parameters: object) -> list[tuple[Any, ...]]:
    with translating_errors(connection), connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        return cursor.fetchall()


class _Connection(WatchedConnection):
    """An autocommit connection whose server ends statements that take too long.

    The limits travel with each statement, in one message and so in its transaction. Behind a pooler that
    shares sessions a limit of the session would meet the statements of others.

    Attributes:
        ends_at: when the server ends the job that uses it, on the monotonic clock in seconds.
        gives_up_at: when the wheel waits no longer for its answer.
        prepares: whether statements are prepared in its session, which then is its own.
    """

    ends_at = gives_up_at = math.inf
    prepares = False

    def __init__(self, dsn: str, **options: Any) -> None:
        super().__init__(dsn, **options)
        self._prepared: set[str] = set()

    def cursor(self, *_: Any, **__: Any) -> Any:
        """A plain cursor that sends the limits along."""
        return super().cursor(cursor_factory=_Cursor)

    def text_of(self, statement: Prepared) -> str:
        """The text that runs a statement here; prepares it the first time."""
        if statement.name not in self._prepared:
            fetch(self, statement.prepare, ())
            self._prepared.add(statement.name)
        return statement.call

    def limits(self) -> str:
        """The text that goes before a statement."""
        # 0 would be no limit at all.
        left_ms = max(1, math.floor((self.ends_at - time.monotonic()) * 1_000))
        return (
            f"{of_the_transaction(self)}{OWN_TRANSACTION}set local statement_timeout = {left_ms}; "
            f"set local lock_timeout = {LOCK_TIMEOUT_MS}; "
        )


class _Cursor(WatchedCursor):
    def execute(self, query: Any, vars: Any = None) -> None:  # noqa: A002 -- the driver's name
        connection = self.connection
        if isinstance(connection, _Connection) and math.isfinite(connection.ends_at):
            query = connection.limits() + query
            connection.answer_seconds = connection.gives_up_at - time.monotonic()
        super().execute(query, vars)


class _Session:
    """A connection for one job at a time, made when it is first needed and again after it was lost."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._connection: _Connection | None = None
        self._is_verified = False
        self._is_cancelled = False

    def carry_out(self, questions: _Questions, job: Job) -> Answer:
        """Runs in a worker thread. Errors of the database come out as they are; the next call may connect
        again."""
        begun_at = time.monotonic()
        seconds = TIMEOUT_SECONDS[type(job)]
        try:
            if self._connection is None:
                name = f"{APPLICATION_NAME} on {socket.gethostname()[:32]}:{os.getpid()}"
                self._connection = connect(self._dsn, name, _Connection)
                self._connection.prepares = take_session(self._connection)
            self._connection.ends_at = begun_at + SERVER_SHARE * seconds
            self._connection.gives_up_at = begun_at + seconds + CANCELS * CANCEL_SECONDS
            if not self._is_verified:
                schema.verify(self._connection)
                self._is_verified = True
            return questions.ask(self._connection, job)
        finally:
            # A cancel that is on its way still must not meet the next job.
            if not self._is_verified or self._is_cancelled or (self._connection and self._connection.closed):
                self.close()

    def cancel(self) -> None:
        """Asks the server to end the running statement, from another thread, which the server may keep
        waiting."""
        connection = self._connection
        if connection is None:
            return
        self._is_cancelled = True

        threading.Thread(target=connection.cancel, name="duewheel wheel cancel", daemon=True).start()

    def cut_off(self) -> None:
        """Ends the conversation from another thread: a call that waits for an answer fails at once."""
        if self._connection is not None:
            self._connection.shut()

    def close(self) -> None:
        """Closes the connection; nothing runs on it."""
        self._is_verified = self._is_cancelled = False
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class _Turning:
    """One turning of the wheel, from start to stop: its schedule, its sessions, and the sleep in between."""

    def __init__(
        self,
        dsn: str,
        *,
        schedule: WheelSchedule,
        questions: _Questions,
        listen: bool,
        on_released: Callable[[int], None] | None,
    ) -> None:
        self._dsn = dsn
        self._schedule = schedule
        self._questions = questions
        self._listen = listen
        self._on_released = on_released
        self._wake = asyncio.Event()
        self._listener: NotificationListener | None = None
        self._has_heard_strangers = False
        self._ended = False
        self._idle: list[_Session] = []
        self._busy: dict[asyncio.Task[None], _Session] = {}
        self._threads = ThreadPoolExecutor(sum(LANES.values()), thread_name_prefix="duewheel wheel")

    async def turn(self) -> None:
        """Never returns; ends by being cancelled."""
        async with self._ended_in_order(), asyncio.TaskGroup() as group:
            if self._listen:
                group.create_task(self._hear())
            group.create_task(self._work())

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._wake.clear()
            for job in self._schedule.take(_monotonic_ms()):
                session = self._idle.pop() if self._idle else _Session(self._dsn)
                task = loop.create_task(self._carry_out(job, session))
                self._busy[task] = session
                task.add_done_callback(self._busy.pop)
            # The clock is read again: beginning jobs took time.
            sleep_ms = self._schedule.sleep_ms(_monotonic_ms())
            alarm = None if math.isinf(sleep_ms) else loop.call_later(sleep_ms / 1_000, self._wake.set)
            await self._wake.wait()
            if alarm is not None:
                alarm.cancel()

    async def _carry_out(self, job: Job, session: _Session) -> None:
        loop = asyncio.get_running_loop()
        timeout_seconds = TIMEOUT_SECONDS[type(job)]
        alarms = [
            loop.call_later(timeout_seconds + number * CANCEL_SECONDS, session.cancel)
            for number in range(CANCELS)
        ]
        try:
            answer = await loop.run_in_executor(self._threads, session.carry_out, self._questions, job)
        except Exception as error:  # noqa: BLE001 - whatever it is, the wheel goes on
            waits = isinstance(error, psycopg2.errors.LockNotAvailable)
            pause_seconds = self._schedule.failed(job, _monotonic_ms(), waits_for_lock=waits)
            reason = said(error) or repr(error)
            log.warning("%s failed; next attempt in %.1f s: %s", job, pause_seconds, reason)
        else:
            self._schedule.finished(job, answer, _monotonic_ms())
            if isinstance(job, Tick) and isinstance(answer, TickAnswer) and answer.released:
                self._tell_released(job.topic_id)
        finally:
            for alarm in alarms:
                alarm.cancel()
            self._idle.append(session)
            self._wake.set()

    async def _hear(self) -> None:
        backoff = Backoff()
        channels = [DUE_CHANNEL] if self._on_released is None else [DUE_CHANNEL, RELEASED_CHANNEL]
        while True:
            try:
                listener = await asyncio.to_thread(self._open_listener, channels)
            except psycopg2.Error as error:
                pause_seconds = backoff.next_seconds()
                log.warning("Cannot listen; next attempt in %.1f s: %s", pause_seconds, said(error))
                await asyncio.sleep(pause_seconds)
                continue
            with listener:
                self._missed_some()
                async with contextlib.aclosing(listener.notifications()) as notifications:
                    async for notification in notifications:
                        if notification is GAP:
                            self._missed_some()
                        else:
                            self._heard(notification)

    def _open_listener(self, channels: list[str]) -> NotificationListener:
        """Runs in a worker thread; whichever of this and the end comes second closes the listener."""
        listener = NotificationListener(
            self._dsn,
            channels,
            application_name=f"{APPLICATION_NAME} listening",
            greeting=_BEGIN_TURNING if self._questions.asks_for_all_topics else None,
            silence_seconds=SILENCE_SECONDS,
        )
        self._listener = listener
        if self._ended:
            listener.close()
        return listener

    def _missed_some(self) -> None:
        self._schedule.look_again(_monotonic_ms())
        self._wake.set()

    def _heard(self, notification: Notification) -> None:
        """Go by a notification; a stranger's is passed over, and said once."""
        if notification.channel == DUE_CHANNEL and (due := notices.due(notification.payload)):
            self._schedule.notified(*due, _monotonic_ms())
            self._wake.set()
        elif notification.channel == RELEASED_CHANNEL and (
            released := notices.released(notification.payload)
        ):
            self._tell_released(released[0])
        elif not self._has_heard_strangers:
            self._has_heard_strangers = True
            log.warning(
                "Heard something on %s that no sender of duewheel says; the wheel passes over this, and "
                "whatever like it may follow: %.100r",
                notification.channel,
                notification.payload,
            )

    def _tell_released(self, topic_id: int) -> None:
        if self._on_released is None:
            return
        try:
            self._on_released(topic_id)
        except Exception:  # the wheel outlives the errors of those it calls
            log.exception("on_released failed for topic %s", topic_id)

    @asynccontextmanager
    async def _ended_in_order(self) -> AsyncIterator[None]:
        """At the end gives running jobs a moment to finish, cuts off the rest and closes the connections."""
        try:
            yield
        finally:
            await self._nothing_runs(STOP_SECONDS)
            for _ in range(CANCELS):
                for session in self._busy.values():
                    session.cancel()
                await self._nothing_runs(CANCEL_SECONDS)
            for session in self._busy.values():
                session.cut_off()
            await self._nothing_runs(STOP_SECONDS)
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._ended = True
            if self._listener is not None:
                self._listener.close()
            for session in self._idle:
                session.close()

    async def _nothing_runs(self, timeout_seconds: float) -> None:
        """Waits until no job runs, or until the time is over."""
        if self._busy:
            await asyncio.wait(self._busy, timeout=timeout_seconds)


class _PreciseSelector(selectors.PollSelector):
    """Wakes within 0.1 ms of its time, however many descriptors its program has.

    poll() counts in milliseconds, and epoll, the usual one, is up to 2 ms late, so the last millisecond is
    slept through; select() cannot watch descriptors above 1023.
    """

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """As of its class."""
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        ends_at = time.monotonic() + timeout
        # Half a millisecond less, as it is rounded up.
        ready = super().select(math.floor(timeout * 1_000) / 1_000 - 0.000_5)
        left_seconds = ends_at - time.monotonic()
        if ready or left_seconds <= 0:
            return ready
        time.sleep(left_seconds)
        return super().select(0)


def _precise_event_loop() -> asyncio.AbstractEventLoop:
    return asyncio.SelectorEventLoop(_PreciseSelector())


def _monotonic_ms() -> float:
    return time.monotonic() * 1_000
