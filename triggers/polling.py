"""The groups that the stream of a connection polls, and the groups that it leaves alone.

Two pollers share the groups. :class:`DoorbellPoller` asks about many groups in one short statement.
:class:`LonePoller` asks about one group at a time: a new group, which it first subscribes, or a group whose
statement failed or took long. It has a separate connection and thread. So a group that waits for a lock, or
has a costly filter, delays the doorbells of no other group.

A group begins with the lone poller and moves to the other poller after its first doorbell. It returns when
its subscription is gone or its statement fails.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from duewheel.hooks.arguments.declared import as_start
from duewheel.store.values.backoff import Backoff
from duewheel.store.values.errors import (
    BrokerMoved,
    BrokerNotUpgraded,
    BrokerUnreachable,
    DueWheelError,
    InvalidArgument,
    InvalidFilter,
    NotAllowed,
    UnknownTopic,
    said,
)

if TYPE_CHECKING:
    from duewheel.store import Broker, Doorbell
    from duewheel.store.consuming.doorbells import Asked

log = logging.getLogger(__name__)


class Watched(NamedTuple):
    """A consumer group of a topic, and the messages of it that a trigger waits for."""

    topic: str
    group: str
    tags: str | None = None
    filter: str | None = None
    start: str = "earliest"
    """Where the group begins if it is made for this trigger: a name, or an instant in ISO 8601."""

    def __str__(self) -> str:
        return f"{self.group} on topic {self.topic}"


class DoorbellSnapshot(NamedTuple):
    """The state of watched groups at one moment by the broker's logs: the raw event of the stream."""

    at: datetime
    """The moment, by the database's clock."""
    doorbells: Mapping[Watched, Doorbell]
    """By group; a group without news is left out."""
    refused: Mapping[Watched, DueWheelError] = MappingProxyType({})
    """Groups that the broker refuses, each with its reason: a trigger that watches one waits in vain."""
    ended: frozenset[str] = frozenset()
    """Waits for an answer that have ended, by the ids of their messages."""


TURN_SECONDS = 0.25
"""How long a poll starts with further groups. The next poll begins with the remaining groups. So finished
answers are passed on without delay, and news of a release waits no longer."""

PORTION = 100
"""The number of groups of one statement."""

TOGETHER_SECONDS = 2.0
"""How long a statement about many groups may take. Each of its groups then has its own statement."""

ALONE_SECONDS = 1.0
"""How long a statement about one group may take at first; twice as long after each failure."""

LONGEST_ALONE_SECONDS = 4.0
"""How long a statement about one group may take at most. A try has up to three, which end before the stream
gives up the connection."""

TRY_AGAIN_SECONDS = 1.0
"""How long the lone poller leaves a group alone that has no topic, is refused or took long, and, at first,
one that failed."""

_REFUSALS = (InvalidArgument, InvalidFilter)
"""The broker refuses such a group for good: it is broadcasting, or has other tags or another filter."""

_AGAIN = " It is tried again, every half minute at last; the doorbells of other groups ring"

_NOW = "select pg_catalog.clock_timestamp(), '{}'::text[]"

# Reads the table, as a login may that turns the wheel and so hears of releases. A deleted topic has the name
# NAME~deleted~ID.
_NOW_AND_TOPICS = """
select pg_catalog.clock_timestamp(),
       array(select split_part(t.name, '~', 1) from duewheel.topic t where t.topic_id = any (%s))
"""


def now_and_topics(broker: Broker, released: Collection[int] = ()) -> tuple[datetime, Collection[str]]:
    """The current instant, and the names of the topics that released something.

    The names are read each time: a topic that is deleted and made again has another id.
    """
    # Imported here: see BrokerAddress.open.
    from duewheel.store.database.connections import fetch

    with broker.connection() as connection:
        statement, parameters = (_NOW_AND_TOPICS, [list(released)]) if released else (_NOW, [])
        ((now, topics),) = fetch(connection, statement, parameters)
    at: datetime = broker.now() or now
    return at, topics


@contextmanager
def noting_failures(note: Callable[[Exception], None]) -> Iterator[None]:
    """Pass on errors of the block that concern the groups it asks about.

    An error that concerns the whole connection leaves the block: the stream then opens everything again.
    """
    # Imported here because DAG files import this module and reach no database.
    import psycopg2

    try:
        yield
    except (BrokerUnreachable, BrokerNotUpgraded, BrokerMoved, NotAllowed):
        raise
    except (psycopg2.Error, DueWheelError) as error:
        note(error)


def _asked(groups: Iterable[Watched]) -> list[Asked]:
    # Imported here: see BrokerAddress.open.
    from duewheel.store.consuming.doorbells import Asked

    return [Asked(group.topic, group.group) for group in groups]


class DoorbellPoller:
    """Asks the broker for the doorbells of subscribed groups, many in one statement.

    A doorbell costs the broker half a millisecond or more, so a group that can have no news is left alone.
    That is a group without ready or leased messages, until its topic releases something, the instant is
    reached that the broker named for its next message, or ``left_alone_seconds`` have passed.

    A poll begins with the groups that have waited longest. When it has lasted long enough, it leaves the
    other groups for the next poll (:attr:`has_more`).

    Used from one worker thread.

    Args:
        broker: the broker to ask.
        left_alone_seconds: the longest time for which a group is left alone.
        releases: whether a poll first releases due messages; False if a wheel does so.
        clock: seconds on any clock that is never set back.
    """

    def __init__(
        self,
        broker: Broker,
        *,
        left_alone_seconds: float,
        releases: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._broker = broker
        self._releases = releases
        self._left_alone = timedelta(seconds=left_alone_seconds)
        self._quiet_until: dict[Watched, datetime] = {}
        self._clock = clock
        self._polls = 0
        self._last_turn: dict[Watched, int] = {}
        self._news: set[Watched] = set()
        self.has_more = False
        """Whether the last poll has left groups with news for the next one; groups that are only checked
        again can wait."""
        self.given_up: set[Watched] = set()
        """The groups that the last poll has given up: without a subscription, or of a statement that
        failed."""

    def poll(self, groups: Collection[Watched], released: Collection[int]) -> DoorbellSnapshot:
        """Return the state of the groups that may have news.

        Args:
            groups: the groups, all subscribed.
            released: the ids of the topics that released something since the last poll.
        """
        self._polls += 1
        self._keep_only(groups)
        until = self._clock() + TURN_SECONDS
        at, topics = now_and_topics(self._broker, released)
        asked = [group for group in groups if self._can_be_new(group, at, topics)]
        # A group that is left out of this poll is in the next, even if its topic releases nothing then.
        self._news = {group for group in asked if group in self._quiet_until or group in self._news}
        doorbells = self._poll_in_turn(asked, at, until)
        self.has_more = bool(self._news)
        return DoorbellSnapshot(at, doorbells)

    def _keep_only(self, groups: Collection[Watched]) -> None:
        """Forget the other groups, so that a later watcher gets the state of its group at once."""
        kept = frozenset(groups)
        for known in (self._quiet_until, self._last_turn):
            for group in known.keys() - kept:
                del known[group]
        self._news &= kept
        self.given_up.clear()

    def _poll_in_turn(self, groups: Iterable[Watched], at: datetime, until: float) -> dict[Watched, Doorbell]:
        doorbells: dict[Watched, Doorbell] = {}
        ordered = sorted(groups, key=lambda group: self._last_turn.get(group, 0))
        while ordered:
            portion, ordered = ordered[:PORTION], ordered[PORTION:]
            polled = len(portion)
            self.given_up.update(portion)
            with noting_failures(lambda _: None):
                told, polled = self._poll_together(portion, until)
                self.given_up.difference_update(portion)
                for group in portion[:polled]:
                    self._note(group, told.get(group), at)
                doorbells.update(told)
            if polled < len(portion) or self._clock() >= until:
                break
        return doorbells

    def _poll_together(self, portion: list[Watched], until: float) -> tuple[dict[Watched, Doorbell], int]:
        """The doorbells of the first groups of a portion, and how many were polled."""
        # Imported here: see BrokerAddress.open.
        from duewheel.store.consuming.watching import poll

        bells, polled = poll(
            self._broker,
            _asked(portion),
            release=self._releases,
            limit_seconds=TOGETHER_SECONDS,
            turn_seconds=max(0.0, until - self._clock()),
        )
        told = {(bell.topic, bell.group): bell for bell in bells}
        return {group: told[group[:2]] for group in portion[:polled] if group[:2] in told}, polled

    def _can_be_new(self, group: Watched, at: datetime, topics: Collection[str]) -> bool:
        quiet_until = self._quiet_until.get(group)
        return group in self._news or quiet_until is None or at >= quiet_until or group.topic in topics

    def _note(self, group: Watched, doorbell: Doorbell | None, at: datetime) -> None:
        self._last_turn[group] = self._polls
        self._quiet_until.pop(group, None)
        self._news.discard(group)
        if doorbell is None:
            # The group was deleted, alone or with its topic.
            self.given_up.add(group)
        elif not doorbell.ready and not doorbell.inflight:
            at_most = at + self._left_alone
            self._quiet_until[group] = min(at_most, doorbell.next_at or at_most)


@dataclass
class _Lone:
    """A group that is asked about alone.

    Attributes:
        again_at_seconds: when it is tried next.
        limit_seconds: the longest time of a statement about it.
        backoff: the pauses after failures.
        problem: why its doorbell cannot ring; None before the first failure.
    """

    again_at_seconds: float
    limit_seconds: float = ALONE_SECONDS
    backoff: Backoff = field(default_factory=lambda: Backoff(TRY_AGAIN_SECONDS))
    problem: Exception | None = None


class LonePoller:
    """Subscribes groups and asks for their doorbells, one group at a time.

    An error concerns one group: it is logged once, with its cause, and the group is tried again after a pause
    that doubles up to half a minute. A group is tried again each second if its topic does not exist or the
    broker refuses it, such as a broadcasting group, whose instances share no messages.

    Used from one worker thread.

    Args:
        broker: the broker to ask.
        releases: see :class:`DoorbellPoller`.
        watchers: names the triggers that watch a group, for the log.
        clock: see :class:`DoorbellPoller`.
    """

    def __init__(
        self,
        broker: Broker,
        *,
        releases: bool = True,
        watchers: Callable[[Watched], str] = lambda _: "a trigger",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._broker = broker
        self._releases = releases
        self._watchers = watchers
        self._clock = clock
        self._lone: dict[Watched, _Lone] = {}
        self.settled: set[Watched] = set()
        """The groups of the last poll that can be asked about together with others."""

    @property
    def silent(self) -> frozenset[Watched]:
        """The groups whose doorbells cannot ring now."""
        return frozenset(group for group, lone in self._lone.items() if lone.problem is not None)

    def take(self, groups: Collection[Watched]) -> bool:
        """Take on these groups, forget all others, and return whether one of them is due.

        Args:
            groups: the groups that the other poller does not ask about.
        """
        self.settled.clear()
        for group in self._lone.keys() - frozenset(groups):
            del self._lone[group]
        for group in groups:
            self._lone.setdefault(group, _Lone(self._clock()))
        return bool(self._due(self._clock()))

    def poll(self) -> DoorbellSnapshot:
        """Try the groups that are due, at least one, and return the doorbells that were found."""
        began = self._clock()
        at, _ = now_and_topics(self._broker)
        doorbells: dict[Watched, Doorbell] = {}
        for group in sorted(self._due(began), key=lambda group: self._lone[group].again_at_seconds):
            doorbells.update(self._try(group))
            if self._clock() >= began + TURN_SECONDS:
                break
        problems = {group: self._lone[group].problem for group in self.silent}
        refused = {group: error for group, error in problems.items() if isinstance(error, _REFUSALS)}
        return DoorbellSnapshot(at, doorbells, refused)

    def pause_seconds(self) -> float:
        """The time until a group is due, unless further groups are taken on."""
        next_at_seconds = min((lone.again_at_seconds for lone in self._lone.values()), default=float("inf"))
        return max(0.0, next_at_seconds - self._clock())

    def _due(self, at_seconds: float) -> list[Watched]:
        return [group for group, lone in self._lone.items() if lone.again_at_seconds <= at_seconds]

    def _try(self, group: Watched) -> dict[Watched, Doorbell]:
        """Subscribe a group and ask for its doorbell, which is returned if there is one."""
        # Imported here: see BrokerAddress.open.
        from duewheel.store.consuming.watching import poll, subscribe

        lone = self._lone[group]
        began = self._clock()
        bells: list[Doorbell] = []
        with noting_failures(lambda error: self._note_failure(group, lone, error)):
            start, limit = as_start(group.start), lone.limit_seconds
            subscribe(
                self._broker,
                group.topic,
                group.group,
                start,
                tags=group.tags,
                filter=group.filter,
                limit_seconds=limit,
            )
            bells, _ = poll(
                self._broker, _asked([group]), release=self._releases, limit_seconds=limit, turn_seconds=limit
            )
            self._note_success(group, lone, self._clock() - began)
        return dict.fromkeys([group], bells[0]) if bells else {}

    def _note_success(self, group: Watched, lone: _Lone, took_seconds: float) -> None:
        if lone.problem is not None:
            log.info("The doorbell of group %s works again", group)
        lone.problem = None
        lone.backoff.reset()
        if took_seconds < TURN_SECONDS:
            del self._lone[group]
            self.settled.add(group)
        else:
            lone.again_at_seconds = self._clock() + max(took_seconds, TRY_AGAIN_SECONDS)

    def _note_failure(self, group: Watched, lone: _Lone, error: Exception) -> None:
        known, lone.problem = lone.problem, error
        pause_seconds = TRY_AGAIN_SECONDS
        if isinstance(error, (UnknownTopic, *_REFUSALS)):
            level, again = logging.ERROR if isinstance(error, _REFUSALS) else logging.WARNING, ""
        else:
            level, again = logging.ERROR, _AGAIN
            pause_seconds = lone.backoff.next_seconds()
            lone.limit_seconds = min(2 * lone.limit_seconds, LONGEST_ALONE_SECONDS)
        lone.again_at_seconds = self._clock() + pause_seconds
        if type(known) is not type(lone.problem):
            log.log(
                level,
                "No doorbell for group %s, watched by %s: %s.%s",
                group,
                self._watchers(group),
                said(error).rstrip(".") or type(error).__name__,
                again,
            )
