"""One wheel for all triggers of a connection, and the doorbells that it sends them.

Airflow's triggerer lets triggers with the same ``shared_stream_key`` share one stream. Here the stream of a
connection runs the timing wheel. After each release, and at least every second, it asks the broker for the
doorbells of the groups that triggers of this process watch and that may have news
(``duewheel.triggers.polling``). Once a second it asks which runs that wait for an answer have got one, or
have timed out (``duewheel.triggers.waits``). Each trigger picks its own news out of the answer and never
queries the database. So a thousand DAGs cost one wheel, one LISTEN and a statement per second, and a DAG
whose topic is idle costs nothing.

Only the triggers know which groups are watched. Each trigger enters its group in ``WATCHED``
(``duewheel.triggers.watched_groups``) for as long as it runs, and the stream reads the groups there.

The stream never ends, because Airflow would then fail every trigger on it. After an error of the
database or of the connection, and a pause that doubles up to half a minute, the stream resolves the
connection and opens everything again. It does the same when the connection was edited; it reads the
connection once a minute. An error is logged once, with what to do, until the wheel works again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowNotFoundException

from duewheel.hooks.broker import BrokerAddress, DueWheelHook
from duewheel.store.values.backoff import Backoff
from duewheel.store.values.errors import DueWheelError, said
from duewheel.triggers.polling import DoorbellPoller, DoorbellSnapshot, LonePoller, Watched
from duewheel.triggers.waits import WAITS, WaitPoller
from duewheel.triggers.watched_groups import WATCHED

if TYPE_CHECKING:
    from duewheel.store import Broker
    from duewheel.triggers.metrics import Metrics

log = logging.getLogger(__name__)


ASK_FOR_THE_RIGHT_SECONDS = 60.0
"""How often a stream whose login may not turn the wheel checks whether it has the right now."""

READ_AGAIN_SECONDS = 60.0
"""How often the stream reads its connection again, which may have been edited."""

POLL_SECONDS = 1.0
"""How long the stream waits for a release before it asks again: leases end and are acked without one."""

POLL_READY_SECONDS = 0.25
"""The same while messages are ready, so that the start of a run, which may bring the next, is seen soon."""

LEFT_ALONE_SECONDS = 30.0
"""The longest time for which a group without known news is left alone: less than the minute ahead for which
the broker names the next message. Without LISTEN, when a release by a consumer may go unheard, no group is
left alone."""

SETTLE_SECONDS = 0.05
"""How long the stream pauses after a poll: releases closer together than this are reported as one."""

LONGEST_POLL_SECONDS = 15.0
"""A poll that takes longer is given up: the server cannot be reached. Otherwise the server has cancelled the
statements before."""

STOP_SECONDS = 2.0
"""How long a stream that is stopped waits for a running poll."""

FIRST_PAUSE_SECONDS = 1.0
"""How long the stream waits after a first error; each further error doubles the wait, up to half a minute."""


METRICS_ARE_ON = ("statsd_on", "statsd_datadog_enabled", "otel_on")
"""The options of Airflow of which at least one is set if it sends metrics."""


async def doorbell_stream(conn_id: str) -> AsyncGenerator[DoorbellSnapshot, None]:
    """Run the wheel of a connection and yield the doorbells of all watched groups. Never ends.

    Args:
        conn_id: the Airflow connection to the broker.
    """
    backoff = Backoff(FIRST_PAUSE_SECONDS)
    metrics = _metrics(conn_id)
    told: set[str] = set()
    try:
        while True:
            try:
                address = await DueWheelHook(conn_id).aresolve()
                # A separate task, because Airflow may answer slowly.
                edited = asyncio.create_task(_until_edited(conn_id, address))
                try:
                    async with aclosing(_snapshots(conn_id, address, metrics)) as snapshots:
                        async for snapshot in snapshots:
                            if told:
                                log.info("The wheel of connection %s works again", conn_id)
                                told.clear()
                            backoff.reset()
                            yield snapshot
                            if edited.done():
                                log.info("Connection %s was edited; its wheel reconnects", conn_id)
                                break
                finally:
                    edited.cancel()
                    await asyncio.wait({edited}, timeout=STOP_SECONDS)
            except Exception as error:  # noqa: BLE001 - Airflow would fail every trigger; it is logged
                _log_stop(conn_id, error, told)
                WATCHED.note_silent(conn_id, WATCHED.over(conn_id))
                if metrics is not None:
                    await metrics.report_watchers()
            await asyncio.sleep(backoff.next_seconds())
    finally:
        WATCHED.note_silent(conn_id, ())
        if metrics is not None:
            # A metrics server that is away may block, and the stream has ended already.
            with suppress(Exception):
                await asyncio.shield(asyncio.to_thread(metrics.forget_watchers))


def _log_stop(conn_id: str, error: Exception, told: set[str]) -> None:
    """Log why the wheel stopped and the cure, unless it was logged since the wheel worked last."""
    reason = said(error) or type(error).__name__
    if reason in told:
        return
    told.add(reason)
    groups = sorted(
        f"group {group}, watched by {WATCHED.watchers(conn_id, group)}" for group in WATCHED.over(conn_id)
    )
    cure = _cure(error)
    log.error(
        "The wheel of connection %s stopped: %s.%s It is tried again, every half minute at last, and not "
        "logged again before it works. Until then no doorbell rings for %s",
        conn_id,
        reason.rstrip("."),
        "" if cure is None else f" {cure}.",
        "; ".join(groups) or "no group",
        exc_info=error if cure is None else None,
    )


def _cure(error: Exception) -> str | None:
    """The cure of an error; None for an unexpected error."""
    # Imported here because DAG files import this module and reach no database.
    import psycopg2

    if isinstance(error, AirflowNotFoundException):
        return "Make this connection in Airflow, or correct duewheel_conn_id in the DAG"
    if isinstance(error, DueWheelError):
        return "`duewheel doctor` on this machine says more"
    if isinstance(error, (psycopg2.OperationalError, psycopg2.InterfaceError, TimeoutError)):
        return "Check that the database runs and that the triggerer reaches it"
    return None


async def _until_edited(conn_id: str, address: BrokerAddress) -> None:
    """Return once the connection names another address. While it cannot be read, it counts as unchanged."""
    is_readable = True
    while True:
        await asyncio.sleep(READ_AGAIN_SECONDS)
        try:
            if await DueWheelHook(conn_id).aresolve() != address:
                return
            is_readable = True
        except Exception as error:  # noqa: BLE001 - Airflow may be away, and the wheel turns without it
            if is_readable:
                log.warning(
                    "Connection %s can no longer be read; its wheel keeps the address read before: %s",
                    conn_id,
                    error,
                )
            is_readable = False


class _Polling:
    """The two pollers of a connection, each in its own thread, and the groups that each asks about.

    Everything here happens on the event loop, but for the polls.

    Args:
        conn_id: the connection.
        broker: its broker.
        hears: whether every release is heard.
        releases: whether polls first release due messages.
    """

    def __init__(self, conn_id: str, broker: Broker, *, hears: bool, releases: bool) -> None:
        self._conn_id = conn_id
        self._together = DoorbellPoller(
            broker, left_alone_seconds=LEFT_ALONE_SECONDS if hears else 0, releases=releases
        )
        self._alone = LonePoller(broker, releases=releases, watchers=partial(WATCHED.watchers, conn_id))
        self._waits = WaitPoller(broker, releases=releases)
        self._settled: set[Watched] = set()
        self._released: set[int] = set()
        self._news = asyncio.Event()
        self._given_up = asyncio.Event()
        self._works = asyncio.Event()
        # The pollers wait until their last snapshot is taken.
        self.snapshots: asyncio.Queue[DoorbellSnapshot] = asyncio.Queue(1)

    def hear(self, topic_id: int) -> None:
        """Note that a topic released something."""
        self._released.add(topic_id)
        self._news.set()

    async def poll_together(self, worker: ThreadPoolExecutor) -> None:
        """Ask about the settled groups again and again, until something fails."""
        # An error of the whole connection also concerns the other poller, and is logged once.
        await self._works.wait()
        while True:
            self._news.clear()
            released = frozenset(self._released)
            self._released.clear()
            self._settled &= WATCHED.over(self._conn_id)
            snapshot = await _in(worker, self._together.poll, frozenset(self._settled), released)
            if self._together.given_up:
                self._settled -= self._together.given_up
                self._given_up.set()
            await self.snapshots.put(snapshot)
            await asyncio.sleep(SETTLE_SECONDS)
            if self._together.has_more:
                continue
            some_ready = any(doorbell.ready for doorbell in snapshot.doorbells.values())
            await _at_most(POLL_READY_SECONDS if some_ready else POLL_SECONDS, self._news)

    async def poll_alone(self, worker: ThreadPoolExecutor) -> None:
        """Ask about the other groups again and again, until something fails."""
        while True:
            self._given_up.clear()
            if self._alone.take(WATCHED.over(self._conn_id) - self._settled):
                snapshot = await _in(worker, self._alone.poll)
                if self._alone.settled:
                    self._settled |= self._alone.settled
                    self._news.set()
                if snapshot.doorbells or snapshot.refused:
                    await self.snapshots.put(snapshot)
            WATCHED.note_silent(self._conn_id, self._alone.silent)
            self._works.set()
            await _at_most(min(self._alone.pause_seconds(), POLL_SECONDS), self._given_up)

    async def poll_waits(self, worker: ThreadPoolExecutor) -> None:
        """Ask about the runs that wait for an answer again and again, until something fails."""
        while True:
            if waits := WAITS.over(self._conn_id):
                snapshot = await _in(worker, self._waits.poll, waits)
                if snapshot.ended:
                    await self.snapshots.put(snapshot)
            await asyncio.sleep(SETTLE_SECONDS if self._waits.has_more else POLL_SECONDS)


async def _in(
    worker: ThreadPoolExecutor, poll: Callable[..., DoorbellSnapshot], *given: Any
) -> DoorbellSnapshot:
    async with asyncio.timeout(LONGEST_POLL_SECONDS):
        return await asyncio.get_running_loop().run_in_executor(worker, poll, *given)


async def _at_most(seconds: float, event: asyncio.Event) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


async def _snapshots(
    conn_id: str, address: BrokerAddress, metrics: Metrics | None
) -> AsyncGenerator[DoorbellSnapshot, None]:
    """Yield one snapshot after another, until something fails."""
    loop = asyncio.get_running_loop()
    workers = [ThreadPoolExecutor(1, thread_name_prefix="duewheel doorbells") for _ in range(2)]
    # In a thread and not on the event loop, because the first broker of a process imports its module.
    broker = await asyncio.to_thread(address.open)
    tasks: list[asyncio.Task[None]] = []
    reporting: asyncio.Task[None] | None = None
    try:
        may_turn = await loop.run_in_executor(workers[0], broker.may_turn_wheel)
        if not may_turn:
            log.warning(
                "The login of connection %s may not turn the wheel; instead, doorbells are checked once a "
                "second. Grant the login the role duewheel_admin, or run `duewheel wheel run` under another "
                "login",
                conn_id,
            )
        polling = _Polling(conn_id, broker, hears=address.listen and may_turn, releases=not may_turn)
        wheel = broker.wheel(on_released=polling.hear).arun() if may_turn else _until_granted(conn_id, broker)
        polls = (
            polling.poll_together(workers[0]),
            polling.poll_alone(workers[1]),
            polling.poll_waits(workers[0]),
        )
        tasks += [asyncio.create_task(task) for task in (wheel, *polls)]
        if metrics is not None:
            reporting = asyncio.create_task(metrics.keep_reporting(broker, may_turn))
        async with aclosing(_until_one_ends(tasks, polling.snapshots)) as found:
            async for snapshot in found:
                yield snapshot
    finally:
        if reporting is not None and metrics is not None:
            reporting.cancel()
            await asyncio.wait({reporting})
            if may_turn:
                workers[0].submit(metrics.turning, False)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # The close is queued after a running poll and waits for it, but not for a server that does not
        # answer.
        closing = {loop.run_in_executor(worker, broker.close) for worker in workers}
        await asyncio.wait(closing, timeout=STOP_SECONDS)
        for worker in workers:
            worker.shutdown(wait=False)


async def _until_one_ends(
    tasks: Collection[asyncio.Task[None]], snapshots: asyncio.Queue[DoorbellSnapshot]
) -> AsyncGenerator[DoorbellSnapshot, None]:
    """Yield the queue's snapshots until one of the tasks ends; raises the error that ended it."""
    while True:
        coming = asyncio.create_task(snapshots.get())
        try:
            done, _ = await asyncio.wait({coming, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not coming.done():
                coming.cancel()
        if coming not in done:
            break
        yield coming.result()
    for task in tasks:
        if task.done():
            task.result()


def _metrics(conn_id: str) -> Metrics | None:
    if not any(conf.getboolean("metrics", option, fallback=False) for option in METRICS_ARE_ON):
        return None
    # Imported here because DAG files import this module and need no metrics.
    from duewheel.triggers.metrics import Metrics

    return Metrics(conn_id)


async def _until_granted(conn_id: str, broker: Broker) -> None:
    """Wait, without a wheel, until the login may turn one."""
    while True:
        await asyncio.sleep(ASK_FOR_THE_RIGHT_SECONDS)
        if await asyncio.to_thread(broker.may_turn_wheel):
            log.info("The login of connection %s may turn the wheel now; it starts", conn_id)
            return
