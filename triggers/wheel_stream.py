"""One wheel for all triggers of a connection, and the doorbells that it sends them.

Airflow's triggerer lets triggers with the same ``shared_stream_key`` share one stream. Here the stream of a
connection runs the timing wheel. After each release, and at least every second, it asks the broker in one
statement for the doorbells of groups: those that triggers of this process watch and that may have news. Each
trigger picks its own group out of the answer and never asks the database itself. So a thousand DAGs cost one
wheel, one LISTEN and a statement per second, and a DAG whose topic is idle costs nothing.

Only the triggers know which groups are watched. Each trigger enters its group in :data:`WATCHED` for as long
as it runs, and the stream reads the groups there.

The stream never ends by itself, because Airflow would then fail every trigger on it. After an error of the
database or of the connection, and a pause that doubles up to half a minute, the stream resolves the
connection and opens everything again. It does the same when the connection was edited; it reads the
connection once a minute. An error is logged once, with what to do, until the wheel works again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, contextmanager, suppress
from datetime import datetime, timedelta
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowNotFoundException

from duewheel.hooks.broker import BrokerAddress, DueWheelHook
from duewheel.hooks.declared import as_start
from duewheel.store.values.backoff import Backoff
from duewheel.store.values.errors import DueWheelError, InvalidArgument, UnknownTopic, said
from duewheel.store.values.tags import EVERY

if TYPE_CHECKING:
    from duewheel.store import Broker, Doorbell
    from duewheel.triggers.metrics import Metrics

log = logging.getLogger(__name__)


class Watched(NamedTuple):
    """A consumer group of a topic, and the messages of it that a trigger waits for."""

    topic: str
    group: str
    tags: str = EVERY
    filter: str | None = None
    start: str = "earliest"
    """Where the group begins if it is made for this trigger: a name, or an instant in ISO 8601."""

    def __str__(self) -> str:
        return f"{self.group} on topic {self.topic}"


class DoorbellSnapshot(NamedTuple):
    """The state of the watched groups at one moment by the broker's logs: the raw event of the stream."""

    at: datetime
    """The moment, by the database's clock."""
    doorbells: Mapping[Watched, Doorbell]
    """By group; a group whose topic does not exist is left out."""
    refused: Mapping[Watched, DueWheelError] = MappingProxyType({})
    """Groups that the broker refuses, each with its reason: a trigger that watches one waits in vain."""


ASK_FOR_THE_RIGHT_SECONDS = 60.0
"""How often a stream whose login may not turn the wheel checks whether it has got the right."""

READ_AGAIN_SECONDS = 60.0
"""How often the stream reads its connection again, which may have been edited."""

LOOK_AGAIN_SECONDS = 1.0
"""How long the stream waits for a release before it asks again: leases end and are acked without one."""

LOOK_AT_READY_SECONDS = 0.25
"""The same while messages are ready, so that the start of a run is seen soon: it brings the next one."""

LEFT_ALONE_SECONDS = 30.0
"""The longest time for which a group without known news is left alone: less than the minute ahead for which
the broker names the next message. Without LISTEN, when a release by a consumer may go unheard, no group is
left alone."""

SETTLE_SECONDS = 0.05
"""How long the stream pauses after a look: releases closer together than this are reported as one."""

LOOKING_SECONDS = 2.0
"""How long a look goes on to further groups. The others are left for the next look, which follows at once. So
even with many groups over a slow link, finished answers are passed on without delay and never lost."""

PORTION = 100
"""How many groups one statement asks about."""

LONGEST_LOOK_SECONDS = 15.0
"""A look that takes longer is given up: the server, or the way to it, is gone."""

STOP_SECONDS = 2.0
"""How long a stream that is stopped waits for a look that is under way."""

FIRST_PAUSE_SECONDS = 1.0
"""How long the stream waits after a first error; each further error doubles the wait, up to half a minute."""


_NOW = "select pg_catalog.clock_timestamp(), '{}'::text[]"

# Reads the table, as a login may that turns the wheel and so hears of releases. A deleted topic has the name
# NAME~deleted~ID.
_NOW_AND_TOPICS = """
select pg_catalog.clock_timestamp(),
       array(select split_part(t.name, '~', 1) from duewheel.topic t where t.topic_id = any (%s))
"""

METRICS_ARE_ON = ("statsd_on", "statsd_datadog_enabled", "otel_on")
"""The options of Airflow of which one is set if it sends metrics."""


class WatchedGroups:
    """The groups that the triggers of this process watch, by connection.

    Only touched from the event loop's thread, so it needs no lock.
    """

    def __init__(self) -> None:
        self._groups: dict[str, dict[Watched, Counter[str]]] = {}
        self._silent: dict[str, Collection[Watched]] = {}

    @contextmanager
    def watching(self, conn_id: str, group: Watched, watcher: str = "a trigger") -> Iterator[None]:
        """Count ``group`` as watched until the block ends, by the trigger that the log calls ``watcher``."""
        groups = self._groups.setdefault(conn_id, {})
        watchers = groups.setdefault(group, Counter())
        watchers[watcher] += 1
        try:
            yield
        finally:
            watchers[watcher] -= 1
            if watchers[watcher] == 0:
                del watchers[watcher]
            if not watchers:
                groups.pop(group, None)

    def over(self, conn_id: str) -> frozenset[Watched]:
        """Return the groups that are watched over this connection."""
        return frozenset(self._groups.get(conn_id, ()))

    def watchers(self, conn_id: str, group: Watched) -> str:
        """The names of the triggers that watch a group, for the log. May be called from any thread."""
        # Copied in one step, since the event loop's thread may change it at any time.
        names = list(self._groups.get(conn_id, {}).get(group, ()))
        return ", ".join(sorted(names)) or "no trigger any more"

    def note_silent(self, conn_id: str, groups: Collection[Watched]) -> None:
        """Note the groups of a connection whose doorbells cannot ring now."""
        self._silent[conn_id] = groups

    def failing(self, conn_id: str) -> Counter[tuple[str, str]]:
        """How many triggers of each topic and group cannot ring now; 0 where all can."""
        silent = self._silent.get(conn_id, ())
        failing: Counter[tuple[str, str]] = Counter()
        for group, watchers in self._groups.get(conn_id, {}).items():
            failing[group.topic, group.group] += watchers.total() if group in silent else 0
        return failing


WATCHED = WatchedGroups()


class Rings:
    """How often doorbells rang in this process since the last report, by connection, topic and group.

    Counted on the event loop and sent from a thread, because the first metric of a process may look up a
    host's name, which blocks.
    """

    def __init__(self) -> None:
        self._rings: dict[str, Counter[tuple[str, str]]] = {}

    def rang(self, conn_id: str, topic: str, group: str) -> None:
        """Count a ring."""
        self._rings.setdefault(conn_id, Counter())[topic, group] += 1

    def taken(self, conn_id: str) -> Counter[tuple[str, str]]:
        """Return the counts of a connection and set them back to zero."""
        return self._rings.pop(conn_id, Counter())


RINGS = Rings()


def ring_payload(doorbell: Doorbell) -> dict[str, Any]:
    """Return an event's payload for a group, in types that JSON knows.

    Example: ``{"topic": "order-timeout", "group": "canceller", "ready": 3,
    "oldest_deliver_at": "2026-01-05T09:30:00+00:00"}``
    """
    oldest = doorbell.oldest_deliver_at
    return {
        "topic": doorbell.topic,
        "group": doorbell.group,
        "ready": doorbell.ready,
        "oldest_deliver_at": None if oldest is None else oldest.isoformat(),
    }


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
                # A task beside the looks, as Airflow may answer slowly.
                edited = asyncio.create_task(_until_edited(conn_id, address))
                try:
                    async with aclosing(_looks(conn_id, address, metrics)) as looks:
                        async for look in looks:
                            if told:
                                log.info("The wheel of connection %s works again", conn_id)
                                told.clear()
                            backoff.reset()
                            yield look
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
            # A metrics server that is away may block, and the stream is over already.
            with suppress(Exception):
                await asyncio.shield(asyncio.to_thread(metrics.forget_watchers))


def _log_stop(conn_id: str, error: Exception, told: set[str]) -> None:
    """Log why the wheel stopped and what to do, unless it was told since the wheel worked last."""
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
    """What mends an error; None of one that nobody expects."""
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
                    "Connection %s can no longer be read; its wheel goes on with the address read before: %s",
                    conn_id,
                    error,
                )
            is_readable = False


async def _looks(
    conn_id: str, address: BrokerAddress, metrics: Metrics | None
) -> AsyncGenerator[DoorbellSnapshot, None]:
    """Yield one look after another, until something fails."""
    loop = asyncio.get_running_loop()
    worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="duewheel doorbells")
    # In a thread and not on the event loop, as the first broker of a process imports its module.
    broker = await asyncio.to_thread(address.open)
    news = asyncio.Event()
    released: set[int] = set()
    turning: asyncio.Task[None] | None = None
    reporting: asyncio.Task[None] | None = None

    def hear(topic_id: int) -> None:
        released.add(topic_id)
        news.set()

    try:
        may_turn = await loop.run_in_executor(worker, broker.may_turn_wheel)
        if not may_turn:
            log.warning(
                "The login of connection %s may not turn the wheel; instead, doorbells are checked once a "
                "second. Grant the login the role duewheel_admin, or run `duewheel wheel run` under another "
                "login",
                conn_id,
            )
        wheel = broker.wheel(on_released=hear).arun() if may_turn else _until_granted(conn_id, broker)
        turning = asyncio.create_task(wheel)
        turning.add_done_callback(lambda _: news.set())
        if metrics is not None:
            reporting = asyncio.create_task(metrics.keep_reporting(broker, may_turn))
        hears = address.listen and may_turn
        porter = Porter(
            broker,
            left_alone_seconds=LEFT_ALONE_SECONDS if hears else 0,
            releases=not may_turn,
            watchers=partial(WATCHED.watchers, conn_id),
        )
        while not turning.done():
            news.clear()
            changed = frozenset(released)
            released.clear()
            async with asyncio.timeout(LONGEST_LOOK_SECONDS):
                look = await loop.run_in_executor(worker, porter.look, WATCHED.over(conn_id), changed)
            WATCHED.note_silent(conn_id, porter.silent)
            yield look
            await asyncio.sleep(SETTLE_SECONDS)
            if porter.has_more:
                continue
            with suppress(TimeoutError):
                some_ready = any(doorbell.ready for doorbell in look.doorbells.values())
                async with asyncio.timeout(LOOK_AT_READY_SECONDS if some_ready else LOOK_AGAIN_SECONDS):
                    await news.wait()
        turning.result()
    finally:
        if reporting is not None and metrics is not None:
            reporting.cancel()
            await asyncio.wait({reporting})
            if may_turn:
                worker.submit(metrics.turning, False)
        if turning is not None:
            turning.cancel()
            await asyncio.wait({turning})
        # The close is queued behind a look that is under way and waits for it, but not for a server that is
        # gone.
        await asyncio.wait({loop.run_in_executor(worker, broker.close)}, timeout=STOP_SECONDS)
        worker.shutdown(wait=False)


def _metrics(conn_id: str) -> Metrics | None:
    """The metrics of the connection, if Airflow sends metrics."""
    if not any(conf.getboolean("metrics", option, fallback=False) for option in METRICS_ARE_ON):
        return None
    # Imported here because DAG files import this module and need no metrics.
    from duewheel.triggers.metrics import Metrics

    return Metrics(conn_id)


async def _until_granted(conn_id: str, broker: Broker) -> None:
    """Stand in for the wheel until the login may turn one."""
    while True:
        await asyncio.sleep(ASK_FOR_THE_RIGHT_SECONDS)
        if await asyncio.to_thread(broker.may_turn_wheel):
            log.info("The login of connection %s may turn the wheel now; it starts", conn_id)
            return


def _in_order(group: Watched) -> tuple[str, ...]:
    """The order in which all triggerers look at groups, so that they never wait for each other in a
    circle."""
    return (group.topic, group.group, group.tags, group.filter or "", group.start)


class Porter:
    """Asks the broker for the doorbells of groups, and makes groups that do not exist yet.

    A look costs the broker half a millisecond for each group, so a group that can have no news is left alone.
    That is a group without ready or leased messages, until its topic releases something, the instant comes
    that the broker named for its next message, or ``left_alone_seconds`` have passed.

    A look begins with the groups that have waited longest. When it has lasted long enough, it leaves the
    others for the next look (:attr:`has_more`). Doorbells found by then are reported, and groups that were
    made stay.

    Used from one worker thread. A topic that does not exist is left out until it does, and logged once. A
    group that the broker refuses is left out as well, such as a broadcasting one, whose instances share no
    messages; only its watchers get the error.

    Args:
        broker: the broker to ask.
        left_alone_seconds: the longest time for which a group is left alone.
        releases: whether a look releases what is due first; False where a wheel does so.
        watchers: names the triggers that watch a group, for the log.
        clock: seconds on any clock that never goes back.
    """

    def __init__(
        self,
        broker: Broker,
        *,
        left_alone_seconds: float,
        releases: bool = True,
        watchers: Callable[[Watched], str] = lambda _: "a trigger",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._broker = broker
        self._watchers = watchers
        self._releases = releases
        self._left_alone = timedelta(seconds=left_alone_seconds)
        self._subscribed: set[Watched] = set()
        self._quiet_until: dict[Watched, datetime] = {}
        self._missing: set[Watched] = set()
        self._refused: dict[Watched, DueWheelError] = {}
        self._clock = clock
        self._looks = 0
        self._last_turn: dict[Watched, int] = {}
        self._news: set[Watched] = set()
        self.has_more = False
        """Whether the last look has left groups with news for the next one; groups that are only checked
        again can wait."""

    @property
    def silent(self) -> frozenset[Watched]:
        """The groups that are left out: their topic does not exist, or the broker refuses them."""
        return frozenset(self._missing | self._refused.keys())

    def look(self, groups: frozenset[Watched], released: frozenset[int]) -> DoorbellSnapshot:
        """Return the state of the groups that may have news.

        Args:
            groups: all groups that are watched.
            released: the ids of the topics that released something since the last look.
        """
        self._looks += 1
        began = self._clock()
        self._keep_only(groups)
        left = self._subscribe_in_turn(groups - self._subscribed, began + LOOKING_SECONDS / 2)
        at, topics = self._now_and_topics(released)
        asked = [group for group in self._subscribed if self._can_be_new(group, at, topics)]
        # A group that has no turn in this look has one in the next, even if its topic releases nothing then.
        self._news = {group for group in asked if group in self._quiet_until or group in self._news}
        doorbells = self._ask_in_turn(asked, at, began + LOOKING_SECONDS)
        self.has_more = left or bool(self._news)
        return DoorbellSnapshot(at, doorbells, dict(self._refused))

    def _keep_only(self, groups: frozenset[Watched]) -> None:
        """Forget groups that are no longer watched, so that a later watcher gets the state of its group at
        once."""
        for known in (self._quiet_until, self._refused, self._last_turn):
            for group in known.keys() - groups:
                del known[group]
        self._subscribed &= groups
        self._missing &= groups
        self._news &= groups

    def _subscribe_in_turn(self, groups: Iterable[Watched], until: float) -> bool:
        """Subscribe groups that are not subscribed yet, at least one; return whether some have had no
        turn."""
        ordered = self._by_turn(groups)
        for done, group in enumerate(ordered):
            if done and self._clock() >= until:
                return any(left not in self._last_turn for left in ordered)
            self._last_turn[group] = self._looks
            self._subscribe(group)
        return False

    def _ask_in_turn(self, groups: Iterable[Watched], at: datetime, until: float) -> dict[Watched, Doorbell]:
        """Ask about the groups portion by portion, at least one portion."""
        doorbells: dict[Watched, Doorbell] = {}
        ordered = self._by_turn(groups)
        for first in range(0, len(ordered), PORTION):
            if first and self._clock() >= until:
                break
            portion = sorted(ordered[first : first + PORTION], key=_in_order)
            told = self._broker.doorbells(
                [group.topic for group in portion],
                [group.group for group in portion],
                [group.tags for group in portion],
                [group.filter for group in portion],
                release=self._releases,
            )
            bells = {(bell.topic, bell.group, bell.tags, bell.filter): bell for bell in told}
            for group in portion:
                self._last_turn[group] = self._looks
                bell = bells.get((group.topic, group.group, group.tags, group.filter))
                if bell is not None:
                    doorbells[group] = bell
                self._note(group, bell, at)
        return doorbells

    def _by_turn(self, groups: Iterable[Watched]) -> list[Watched]:
        """The groups in order of their waiting time, longest first."""
        return sorted(groups, key=lambda group: (self._last_turn.get(group, 0), _in_order(group)))

    def _can_be_new(self, group: Watched, at: datetime, topics: Collection[str]) -> bool:
        quiet_until = self._quiet_until.get(group)
        return group in self._news or quiet_until is None or at >= quiet_until or group.topic in topics

    def _note(self, group: Watched, doorbell: Doorbell | None, at: datetime) -> None:
        self._quiet_until.pop(group, None)
        self._news.discard(group)
        if doorbell is None:
            # The group was deleted, alone or with its topic, and is made again once the topic exists.
            self._subscribed.discard(group)
        elif not doorbell.ready and not doorbell.inflight:
            at_most = at + self._left_alone
            self._quiet_until[group] = min(at_most, doorbell.next_at or at_most)

    def _now_and_topics(self, released: frozenset[int]) -> tuple[datetime, Collection[str]]:
        """The current instant, and the names of the topics that released something.

        The names are read each time: a topic that is deleted and made again has another id.
        """
        statement = _NOW_AND_TOPICS if released else _NOW
        with self._broker.connection() as connection, connection.cursor() as cursor:
            cursor.execute(statement, (list(released),) if released else None)
            ((now, topics),) = cursor.fetchall()
        at: datetime = self._broker.now() or now
        return at, topics

    def _subscribe(self, watched: Watched) -> None:
        try:
            self._broker.consumer(watched.topic, watched.group, start=as_start(watched.start))
        except UnknownTopic as error:
            if watched not in self._missing:
                log.warning(
                    "No doorbell for group %s yet, watched by %s: %s",
                    watched,
                    self._watchers(watched),
                    error,
                )
                self._missing.add(watched)
        except InvalidArgument as error:
            if watched not in self._refused:
                log.error(
                    "No doorbell for group %s, watched by %s: %s", watched, self._watchers(watched), error
                )
            self._refused[watched] = error
        else:
            self._subscribed.add(watched)
            self._news.add(watched)
            self._missing.discard(watched)
            self._refused.pop(watched, None)
