"""The running wheel: releases messages at their instant, and wakes up for nothing else.

`WheelRunner` carries out the decisions of `duewheel.store.wheel.wheel_schedule`. It makes releases punctual
and nothing more. Without a wheel, receivers release due messages. With two wheels, the second finds nothing
to do. A wheel that is killed at any point leaves a transaction that was committed or was not. So the wheel
holds no lock, keeps no state that matters, and may be started, doubled and killed at will.

One event loop decides, and worker threads query the database. psycopg2 blocks, so each job runs in a thread
with its own connection; LISTEN uses the event loop. The server ends a job that takes longer than its time.
If it does not, the wheel cancels the job and then shuts the connection, so a job that waits for a lock
leaves no server process running. A failed job is logged and tried again after a pause; only a stop ends the
wheel.

Memory holds timers for topics, at most one per granularity within the look-ahead, never messages.
Connections: one to listen, and one per job that runs at once, at most nine; an idle wheel polls once per
`poll_seconds`, and the recurring schedules every 2 s.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import selectors
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Final

import psycopg2

from duewheel.store.database import notices
from duewheel.store.database.connections import (
    libpq_dsn,
)
from duewheel.store.database.listening import GAP, Notification, NotificationListener
from duewheel.store.database.notices import DUE_CHANNEL, RELEASED_CHANNEL
from duewheel.store.values.backoff import Backoff
from duewheel.store.values.errors import said
from duewheel.store.wheel import upkeep
from duewheel.store.wheel.job_connection import (
    APPLICATION_NAME,
    CANCEL_SECONDS,
    CANCELS,
    TIMEOUT_SECONDS,
    JobSession,
)
from duewheel.store.wheel.job_queries import JobQueries, monotonic_ms
from duewheel.store.wheel.wheel_schedule import (
    LANES,
    Job,
    Tick,
    TickAnswer,
    WheelSchedule,
)

log = logging.getLogger(__name__)

#: A sender notifies the wheel of messages due less than 0.6 s after the send; polls find the rest.
POLL_SECONDS: Final = 0.5
#: The longest silence on the connection that listens before a statement tests it.
SILENCE_SECONDS: Final = 15.0
LOOKAHEAD_SECONDS: Final = 2.0
MAINTAIN_SECONDS: Final = 3_600.0

#: How long jobs may continue when the wheel is stopped, and how long ending them may then take.
STOP_SECONDS: Final = 2.0

# Consumers leave releasing to a wheel as long as its listening connection exists.
_BEGIN_TURNING = "SELECT duewheel.begin_turning()"


class WheelRunner:
    """Releases the messages of a broker at their instants until it is stopped.

    Args:
        dsn: the broker's database.
        poll_seconds: the time between two polls for the next due messages. More than 0.5 s makes messages
            late that are sent between 0.6 s and `poll_seconds` before they are due.
        lookahead_seconds: how far a poll reaches; more than `poll_seconds`.
        maintain_seconds: the time between two rounds of maintenance.
        topics: names of the topics to look after, with their retries; None is all of them.
        listen: whether to LISTEN; False if a pooler does not allow it. Then a message sent less than
            `poll_seconds` before it is due is up to `poll_seconds` late.
        on_released: called on the event loop, with the id of the topic, right after messages of it were
            released by this wheel or, when listening, by any other process. It must not block. It may be
            called twice for one release.

    Raises:
        ValueError: impossible times.

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
                "to look further than to its next poll; choose 0 < poll_seconds < lookahead_seconds"
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
        """Turn the wheel until `stop` is set or the process is interrupted; for a separate process."""
        with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(_PreciseSelector())) as runner:
            runner.run(self._run_until(stop))

    async def arun(self) -> None:
        """Turn the wheel on the running event loop until cancelled; nothing in it blocks the loop."""
        await _Turning(
            self._dsn,
            schedule=WheelSchedule(
                monotonic_ms(),
                poll_ms=self._poll_seconds * 1_000,
                lookahead_ms=self._lookahead_seconds * 1_000,
            ),
            queries=JobQueries(
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


class _Turning:
    """One run of the wheel, from start to stop: its schedule, its sessions, and the sleep in between."""

    def __init__(
        self,
        dsn: str,
        *,
        schedule: WheelSchedule,
        queries: JobQueries,
        listen: bool,
        on_released: Callable[[int], None] | None,
    ) -> None:
        self._dsn = dsn
        self._schedule = schedule
        self._queries = queries
        self._listen = listen
        self._on_released = on_released
        self._wake = asyncio.Event()
        self._listener: NotificationListener | None = None
        self._has_heard_strangers = False
        self._ended = False
        self._idle: list[JobSession] = []
        self._busy: dict[asyncio.Task[None], JobSession] = {}
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
            for job in self._schedule.take(monotonic_ms()):
                session = self._idle.pop() if self._idle else JobSession(self._dsn)
                task = loop.create_task(self._carry_out(job, session))
                self._busy[task] = session
                task.add_done_callback(self._busy.pop)
            # The clock is read again: beginning jobs took time.
            sleep_ms = self._schedule.sleep_ms(monotonic_ms())
            alarm = None if math.isinf(sleep_ms) else loop.call_later(sleep_ms / 1_000, self._wake.set)
            await self._wake.wait()
            if alarm is not None:
                alarm.cancel()

    async def _carry_out(self, job: Job, session: JobSession) -> None:
        loop = asyncio.get_running_loop()
        timeout_seconds = TIMEOUT_SECONDS[type(job)]
        alarms = [
            loop.call_later(timeout_seconds + number * CANCEL_SECONDS, session.cancel)
            for number in range(CANCELS)
        ]
        try:
            answer = await loop.run_in_executor(self._threads, session.carry_out, self._queries.ask, job)
        except Exception as error:  # noqa: BLE001 - whatever it is, the wheel continues
            waits = isinstance(error, psycopg2.errors.LockNotAvailable)
            pause_seconds = self._schedule.failed(job, monotonic_ms(), waits_for_lock=waits)
            reason = said(error) or repr(error)
            log.warning("%s failed; next attempt in %.1f s: %s", job, pause_seconds, reason)
        else:
            self._schedule.finished(job, answer, monotonic_ms())
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
        """Runs in a worker thread; if the wheel has ended by then, it closes the listener itself."""
        listener = NotificationListener(
            self._dsn,
            channels,
            application_name=f"{APPLICATION_NAME} listening",
            greeting=_BEGIN_TURNING if self._queries.asks_for_all_topics else None,
            silence_seconds=SILENCE_SECONDS,
        )
        self._listener = listener
        if self._ended:
            listener.close()
        return listener

    def _missed_some(self) -> None:
        self._schedule.poll_again(monotonic_ms())
        self._wake.set()

    def _heard(self, notification: Notification) -> None:
        """Handle a notification; one that duewheel does not send is ignored, and logged once."""
        if notification.channel == DUE_CHANNEL and (due := notices.due(notification.payload)):
            self._schedule.notified(*due, monotonic_ms())
            self._wake.set()
        elif notification.channel == RELEASED_CHANNEL and (
            released := notices.released(notification.payload)
        ):
            self._tell_released(released[0])
        elif not self._has_heard_strangers:
            self._has_heard_strangers = True
            log.warning(
                "Received a notification on %s that duewheel does not send; the wheel ignores it and any "
                "further ones like it: %.100r",
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
        """At the end, give running jobs a moment to finish, cut off the rest and close the connections."""
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
        if self._busy:
            await asyncio.wait(self._busy, timeout=timeout_seconds)


class _PreciseSelector(selectors.PollSelector):
    """Wakes within 0.1 ms of its time, however many descriptors its program has.

    poll() counts in milliseconds, and the usual epoll is up to 2 ms late, so the last millisecond is
    slept through; select() cannot watch descriptors above 1023.
    """

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Like the base class's."""
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        ends_at = time.monotonic() + timeout
        # Half a millisecond less, because it is rounded up.
        ready = super().select(math.floor(timeout * 1_000) / 1_000 - 0.000_5)
        left_seconds = ends_at - time.monotonic()
        if ready or left_seconds <= 0:
            return ready
        time.sleep(left_seconds)
        return super().select(0)
