"""The next step of the wheel: the decisions of the runner, without its clock, threads and connections.

This is a state machine. The runner asks it which jobs to begin (`take`) and how long to sleep (`sleep_ms`),
and tells it of answers (`finished`), failures (`failed`) and notifications (`notified`, `poll_again`). The
instant is always an argument, on the monotonic clock in milliseconds, so a test plays hours of it, with a
simulated database, in no time.

Two wheels turn in it, because there are two kinds of time. Instants of messages and ends of leases are the
database's, whose clock may be set; they wait in one wheel. The pauses of the wheel itself (poll again, follow
up, try again) are measured on the monotonic clock, which never steps; they wait in the other.

The rules
    *Poll* once per `poll_ms`: which topics have something due within `lookahead_ms`, each with the first
    instant, and which leases end by then. The answer includes earlier due messages that have not been
    released, so a poll finds all messages without a notification.

    *Scan* all topics at the start and once per `scan_ms`, page after page, for messages that were due longer
    ago than a poll reaches, and for unsettled topics that another wheel or a consumer has ticked. The wheel
    uses each page at once, so it turns before the first scan has ended. A page that failed is read again, but
    no page before it.

    *Tick* a topic at the instant a message of it is due. Instants of one topic within one granularity share a
    timer, at the earliest of them; the latest is remembered, and ticked for if the first tick did not reach
    it. So there are at most `lookahead / granularity` timers per topic, however many messages wait. A topic
    that was never ticked is assumed to have a granularity of 1 ms.

    After a tick that released something the topic rests for its granularity and is then ticked again, because
    senders do not notify the wheel of messages due during the rest. This continues until a tick releases
    nothing; that tick returns the next due instant. An idle topic has no rest to wait for and is ticked at
    the instant. The rest counts from request to request, so a slow answer does not make it longer.

    A topic that was released twice within 50 ms, or two granularities, is *busy*: senders leave the next
    messages to the wheel, which continues to tick the topic for 0.3 s. A topic with a message now and then
    costs two ticks for each.

    After a tick that is *unsettled* (transactions are open that may still bring messages for it) the wheel
    *follows up*, at growing pauses up to 1 s, until the topic is settled: it asks, in one statement for all
    such topics, whether these transactions have ended and left messages, and then ticks the topic. Pauses of
    several topics end together, so that many cost little more than one.

    A tick that was too early by the database's clock has done nothing; its timer is set again.

    *Revive* the leases of a group and topic when one ends. *Maintain*, a step at a time, and *send the
    occurrences* of recurring schedules at the start and whenever the last answer asked for it.

    A job that failed is not begun again before a pause that grows with each failure (0.1 s to 30 s), or until
    the database is reachable again; other jobs continue. A job that failed because another session holds a
    lock is tried again within 2 s, so that it is not late for long once the lock is free.

    No job runs twice at once. Each kind of job has its own lanes, so a long one does not hold up ticks.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter, deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, TypeVar

from duewheel.store.database.database_clock import ClockReading, DatabaseClock
from duewheel.store.values.backoff import Backoff
from duewheel.store.wheel.timing_wheel import TimingWheel

LONGEST_UNSETTLED_PAUSE_SECONDS: Final = 1.0
SHORTEST_UNSETTLED_PAUSE_SECONDS: Final = 0.02
LONGEST_PAUSE_FOR_LOCK_SECONDS: Final = 2.0
SCAN_MS: Final = 60_000.0

#: A tick that began no later than this after its topic's rest counts as begun at the end of the rest.
#: Otherwise each rest of a busy topic would be longer by the time that waking up takes.
PUNCTUAL_MS: Final = 1.0

#: How long a busy topic continues to be ticked. Senders rely on it, with a margin: if a wheel ticked it in
#: the last 0.1 s, they send no notification of messages due up to 0.2 s after that tick.
BUSY_MS: Final = 300.0
BUSY_PAUSE_MS: Final = 5.0

#: How many notified topics the wheel asks about at once of which it knows nothing yet. Any login may send
#: notifications; further topics are left to the next poll, which finds the existing ones.
MOST_UNKNOWN: Final = 100
#: About how many topics one statement asks about whether they are settled.
MOST_FOLLOWED_UP: Final = 1_000

PayloadT = TypeVar("PayloadT", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Poll:
    """Ask which messages are due next."""

    def __str__(self) -> str:
        return "Polling for due messages"


@dataclass(frozen=True, slots=True)
class Scan:
    """Ask for the due messages of the next page of topics."""

    def __str__(self) -> str:
        return "Scanning all topics for due messages"


@dataclass(frozen=True, slots=True)
class Tick:
    """Release the due messages of a topic."""

    topic_id: int

    def __str__(self) -> str:
        return f"Releasing the due messages of topic number {self.topic_id}"


@dataclass(frozen=True, slots=True)
class FollowUp:
    """Ask about the open transactions that ticks saw.

    Attributes:
        topic_ids: the topics asked about; jobs of this kind are equal, whatever they ask about.
    """

    topic_ids: tuple[int, ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        return "Asking whether open transactions have ended"


@dataclass(frozen=True, slots=True)
class Revive:
    """Turn leases that have ended into retries."""

    group_id: int
    topic_id: int

    def __str__(self) -> str:
        return (
            "Giving the messages of ended leases back to their group, "
            f"number {self.group_id} on topic number {self.topic_id},"
        )


@dataclass(frozen=True, slots=True)
class Maintain:
    """One step of a round of upkeep: make slots ahead, drop slots past retention, trim logs."""

    def __str__(self) -> str:
        return "A step of upkeep"


@dataclass(frozen=True, slots=True)
class SendOccurrences:
    """Send the next occurrences of recurring schedules."""

    def __str__(self) -> str:
        return "Sending the occurrences of schedules"


Job = Poll | Scan | Tick | FollowUp | Revive | Maintain | SendOccurrences

#: How many jobs of a kind run at once, each on its own connection.
LANES: Final[dict[type[Job], int]] = {
    Poll: 1,
    Scan: 1,
    Tick: 3,
    FollowUp: 1,
    Revive: 1,
    Maintain: 1,
    SendOccurrences: 1,
}


class DueInstant(NamedTuple):
    """The first instant at which a message of a topic is due (Unix microseconds)."""

    topic_id: int
    due_at_us: int
    granularity_us: int


class LeaseEnd(NamedTuple):
    """The end of a lease (Unix microseconds)."""

    group_id: int
    topic_id: int
    expires_at_us: int


@dataclass(frozen=True, slots=True)
class PollAnswer:
    """The due instants and lease ends that a poll or a page of a scan found within the look-ahead."""

    reading: ClockReading
    due: list[DueInstant] = field(default_factory=list)
    lease_ends: list[LeaseEnd] = field(default_factory=list)
    #: Topics found by a scan for which transactions may still bring messages.
    unsettled: frozenset[int] = frozenset()
    #: The topics looked after; None is all of them.
    watched: frozenset[int] | None = None
    #: A scan has further pages.
    more: bool = False


@dataclass(frozen=True, slots=True)
class TickAnswer:
    """The result of a tick.

    `asked_at_us` is the database's clock when the request arrived. `hi_us` is the instant up to which the
    topic is released. `next_due_us` is the next due instant within the look-ahead, if this tick released
    nothing. `busy` is whether senders leave the next messages to a wheel that continues to tick. `more` means
    that late messages are left: a tick releases a portion of them, and the next tick follows without a rest.
    """

    reading: ClockReading
    asked_at_us: int
    released: bool
    hi_us: int | None
    unsettled: bool
    busy: bool
    granularity_us: int
    next_due_us: int | None = None
    more: bool = False


@dataclass(frozen=True, slots=True)
class FollowUpAnswer:
    """The unsettled topics among those asked about.

    `late` topics are to be ticked, because transactions have left messages there. Transactions of
    `unsettled` topics are still open.
    """

    late: frozenset[int]
    unsettled: frozenset[int]
    reading: ClockReading | None = None


@dataclass(frozen=True, slots=True)
class PauseAnswer:
    """The job is done, and is to be done again after ``pause_ms``.

    ``is_step``: it was one step of several, and an earlier failure still counts.
    """

    pause_ms: float
    reading: ClockReading | None = None
    is_step: bool = False


@dataclass(frozen=True, slots=True)
class DoneAnswer:
    """A job without a result that matters here is done."""

    reading: ClockReading | None = None


Answer = PollAnswer | TickAnswer | FollowUpAnswer | PauseAnswer | DoneAnswer


class _DueTimer(NamedTuple):
    """The instants of a topic within one granularity."""

    topic_id: int
    window: int


@dataclass(slots=True)
class _Topic:
    """The wheel's memory of a topic."""

    granularity_us: int = 1_000
    #: A tick is still to reach this instant.
    until_us: int = 0
    unsettled: Backoff | None = None
    #: Until then, on the monotonic clock, it is ticked again and again, whatever is due.
    busy_until_ms: float = -math.inf
    #: On the monotonic clock.
    rest_ends_at_ms: float = -math.inf


class _Timers(Generic[PayloadT]):
    """A timing wheel whose timers fire at their instant instead of at the next whole millisecond.

    The wheel returns a timer at the beginning of its millisecond. From then on it waits in a heap, which
    therefore holds no more than the timers of one millisecond. As in the wheel, a payload has one timer, the
    earliest that was added.
    """

    def __init__(self, now_ms: float) -> None:
        self._wheel: TimingWheel[PayloadT] = TimingWheel(math.floor(now_ms))
        self._at_ms: dict[PayloadT, float] = {}
        self._near: list[tuple[float, int, PayloadT]] = []
        self._order = itertools.count()

    def __len__(self) -> int:
        return len(self._at_ms)

    def add(self, payload: PayloadT, at_ms: float) -> None:
        """Set a timer, unless the payload has one that is due no later."""
        if self._at_ms.get(payload, math.inf) > at_ms:
            self._at_ms[payload] = at_ms
            self._wheel.add(payload, math.floor(at_ms))

    def advance(self, now_ms: float) -> list[PayloadT]:
        """Take out the payloads due by now, in order."""
        for timer in self._wheel.advance(math.floor(now_ms)):
            heapq.heappush(self._near, (self._at_ms[timer.payload], next(self._order), timer.payload))
        fired: list[PayloadT] = []
        while self._near and self._near[0][0] <= now_ms:
            at_ms, _, payload = heapq.heappop(self._near)
            # Else it was set to an earlier instant in the meantime, and has fired.
            if self._at_ms.get(payload) == at_ms:
                del self._at_ms[payload]
                fired.append(payload)
        return fired

    def next_at_ms(self) -> float:
        """When to advance next: at the instant of a timer, or at the beginning of its millisecond."""
        near_ms = self._near[0][0] if self._near else math.inf
        slot_ms = self._wheel.next_due_at_ms()
        return near_ms if slot_ms is None else min(near_ms, slot_ms)


class WheelSchedule:
    """Decides the next step; see the module for the rules.

    Args:
        now_ms: the instant, on the monotonic clock in milliseconds.
        poll_ms: between two polls.
        lookahead_ms: how far a poll reaches.
        scan_ms: between two scans.
    """

    def __init__(
        self,
        now_ms: float,
        *,
        poll_ms: float,
        lookahead_ms: float,
        scan_ms: float = SCAN_MS,
    ) -> None:
        self._poll_ms = poll_ms
        self._lookahead_ms = lookahead_ms
        self._scan_ms = scan_ms
        self._clock = DatabaseClock()
        self._due: _Timers[_DueTimer | Revive] = _Timers(0)
        self._pauses: _Timers[Job] = _Timers(now_ms)
        # Unsettled topics: when to follow up, and the topics for which that is due.
        self._follow_up_at: _Timers[int] = _Timers(now_ms)
        self._to_follow_up: set[int] = set()
        self._until_us: dict[_DueTimer, int] = {}
        self._topics: dict[int, _Topic] = {}
        # Topics that only notifications have named.
        self._unknown: set[int] = set()
        self._watched: frozenset[int] | None = None
        self._queued: dict[type[Job], deque[Job]] = {kind: deque() for kind in LANES}
        self._in_queue: set[Job] = set()
        self._running: set[Job] = set()
        self._lanes_taken: Counter[type[Job]] = Counter()
        self._again: set[Job] = set()
        self._not_before_ms: dict[Job, float] = {}
        self._failures: dict[Job, Backoff] = {}
        self._pause(Poll(), now_ms)
        self._pause(Scan(), now_ms)
        self._pause(Maintain(), now_ms)
        self._pause(SendOccurrences(), now_ms)

    def take(self, now_ms: float) -> list[Job]:
        """The jobs to begin now; each has to be answered by `finished` or `failed`."""
        for job in self._pauses.advance(now_ms):
            self._want(job, now_ms)
        if unsettled := self._follow_up_at.advance(now_ms):
            self._to_follow_up.update(unsettled)
            self._want(FollowUp(), now_ms)
        if self._clock.known:
            for timer in self._due.advance(self._clock.database_ms(now_ms)):
                if isinstance(timer, Revive):
                    self._want(timer, now_ms)
                    continue
                until_us = self._until_us.pop(timer)
                if (topic := self._topics.get(timer.topic_id)) is not None:
                    topic.until_us = max(topic.until_us, until_us)
                    self._want(Tick(timer.topic_id), now_ms)
        begun: list[Job] = []
        for kind, queue in self._queued.items():
            while queue and self._lanes_taken[kind] < LANES[kind]:
                job = queue.popleft()
                self._in_queue.remove(job)
                if isinstance(job, FollowUp):
                    if not self._to_follow_up:
                        continue
                    job = FollowUp(tuple(sorted(self._to_follow_up)[:MOST_FOLLOWED_UP]))
                    self._to_follow_up.difference_update(job.topic_ids)
                self._running.add(job)
                self._lanes_taken[kind] += 1
                begun.append(job)
        return begun

    def sleep_ms(self, now_ms: float) -> float:
        """The time until the next job begins, without an answer or a notification; may be infinite."""
        wake_at_ms = min(self._pauses.next_at_ms(), self._follow_up_at.next_at_ms())
        due_at_ms = self._due.next_at_ms()
        if math.isfinite(due_at_ms) and self._clock.known:
            wake_at_ms = min(wake_at_ms, self._clock.monotonic_ms(due_at_ms))
        return max(0.0, wake_at_ms - now_ms)

    def finished(self, job: Job, answer: Answer, now_ms: float) -> None:
        """Note that a job is done, learn from its answer and decide the next steps."""
        was_failing = job in self._failures
        if not (isinstance(answer, PauseAnswer) and answer.is_step):
            self._failures.pop(job, None)
        self._not_before_ms.pop(job, None)
        if answer.reading is not None:
            self._clock.observe(answer.reading)
        match answer:
            case PollAnswer():
                self._polled(answer, now_ms)
            case TickAnswer() if isinstance(job, Tick):
                self._ticked(job, answer)
            case FollowUpAnswer() if isinstance(job, FollowUp):
                self._followed_up(job, answer, now_ms)
            case PauseAnswer():
                self._pause(job, now_ms + answer.pause_ms)
            case _ if isinstance(job, Tick):
                # The topic does not exist, or no longer.
                self._topics.pop(job.topic_id, None)
                self._unknown.discard(job.topic_id)
            case _:
                pass
        if isinstance(job, Poll):
            self._pause(job, now_ms + self._poll_ms)
            if was_failing:
                self._try_again_now(now_ms)
                self._pause(Scan(), now_ms)
        elif isinstance(job, Scan):
            more = isinstance(answer, PollAnswer) and answer.more
            self._pause(job, now_ms if more else now_ms + self._scan_ms)
        self._release(job, now_ms)
        if isinstance(job, FollowUp) and self._to_follow_up:
            self._want(FollowUp(), now_ms)

    def failed(self, job: Job, now_ms: float, *, waits_for_lock: bool = False) -> float:
        """Note that a job failed; returns the pause before it is tried again, in seconds."""
        if isinstance(job, FollowUp):
            self._to_follow_up.update(job.topic_ids)
        pause_seconds = self._failures.setdefault(job, Backoff()).next_seconds()
        if waits_for_lock:
            pause_seconds = min(pause_seconds, LONGEST_PAUSE_FOR_LOCK_SECONDS)
        self._not_before_ms[job] = now_ms + 1_000 * pause_seconds
        self._pause(job, self._not_before_ms[job])
        self._release(job, now_ms)
        return pause_seconds

    def notified(self, topic_id: int, due_at_us: int, now_ms: float) -> None:
        """A sender named an instant at which a message is due. The next poll finds an instant beyond the
        look-ahead, and one of a topic that is named together with too many unknown ones."""
        if not self._clock.known or (self._watched is not None and topic_id not in self._watched):
            return
        if due_at_us / 1_000 > self._clock.database_ms(now_ms) + self._lookahead_ms:
            return
        if topic_id not in self._topics:
            if len(self._unknown) >= MOST_UNKNOWN:
                return
            self._unknown.add(topic_id)
        self._add_due(topic_id, due_at_us)

    def poll_again(self, now_ms: float) -> None:
        """Poll now, whatever failed before, because notifications may have been missed and the database can
        be reached."""
        self._try_again_now(now_ms)
        self._pause(Poll(), now_ms)

    def waiting(self) -> int:
        """How many timers wait: bounded by topics and the look-ahead, not by messages."""
        return len(self._due) + len(self._pauses) + len(self._follow_up_at)

    def _polled(self, answer: PollAnswer, now_ms: float) -> None:
        self._watched = answer.watched
        for instant in answer.due:
            self._learn_granularity(instant.topic_id, instant.granularity_us, now_ms)
            self._add_due(instant.topic_id, instant.due_at_us)
        for end in answer.lease_ends:
            self._due.add(Revive(end.group_id, end.topic_id), end.expires_at_us / 1_000)
        for topic_id in answer.unsettled:
            topic = self._known_topic(topic_id)
            if topic.unsettled is None:
                self._follow_up_later(topic, topic_id, now_ms)
        for job in [job for job, not_before_ms in self._not_before_ms.items() if not_before_ms <= now_ms]:
            del self._not_before_ms[job]

    def _ticked(self, job: Tick, answer: TickAnswer) -> None:
        topic = self._known_topic(job.topic_id)
        topic.granularity_us = answer.granularity_us
        reached_us = answer.asked_at_us
        if answer.busy:
            topic.busy_until_ms = answer.reading.received_ms + BUSY_MS
        if (answer.released or answer.more) and answer.hi_us is not None:
            reached_us = answer.hi_us
            topic.unsettled = None
            began_at_ms = answer.reading.sent_ms
            if 0 <= began_at_ms - topic.rest_ends_at_ms <= PUNCTUAL_MS:
                began_at_ms = topic.rest_ends_at_ms
            topic.rest_ends_at_ms = began_at_ms + (0 if answer.more else answer.granularity_us / 1_000)
            self._not_before_ms[job] = topic.rest_ends_at_ms
            self._pause(job, topic.rest_ends_at_ms)
        elif answer.reading.received_ms < topic.busy_until_ms:
            # Senders do not notify while a topic is busy.
            self._pause(job, answer.reading.received_ms + max(BUSY_PAUSE_MS, answer.granularity_us / 1_000))
        elif answer.unsettled:
            self._follow_up_later(topic, job.topic_id, answer.reading.received_ms)
        else:
            topic.unsettled = None
        if topic.until_us > reached_us:
            self._add_due(job.topic_id, topic.until_us)
        topic.until_us = 0
        if answer.next_due_us is not None:
            self._add_due(job.topic_id, answer.next_due_us)

    def _follow_up_later(self, topic: _Topic, topic_id: int, now_ms: float) -> None:
        if topic.unsettled is None:
            first_seconds = max(SHORTEST_UNSETTLED_PAUSE_SECONDS, topic.granularity_us / 1_000_000)
            topic.unsettled = Backoff(first_seconds, max(LONGEST_UNSETTLED_PAUSE_SECONDS, first_seconds))
        pause_ms = 1_000 * topic.unsettled.next_seconds()
        # At a whole multiple of it, so that topics with the same pause are asked about together.
        self._follow_up_at.add(topic_id, pause_ms * (now_ms // pause_ms + 1))

    def _followed_up(self, job: FollowUp, answer: FollowUpAnswer, now_ms: float) -> None:
        for topic_id in self._topics.keys() & job.topic_ids:
            if topic_id in answer.late:
                self._want(Tick(topic_id), now_ms)
            elif topic_id in answer.unsettled:
                self._follow_up_later(self._topics[topic_id], topic_id, now_ms)
            else:
                self._topics[topic_id].unsettled = None

    def _learn_granularity(self, topic_id: int, granularity_us: int, now_ms: float) -> None:
        """A rest that began with a longer granularity ends with the new one."""
        topic, job = self._known_topic(topic_id), Tick(topic_id)
        shorter_ms = (topic.granularity_us - granularity_us) / 1_000
        topic.granularity_us = granularity_us
        if shorter_ms > 0 and self._not_before_ms.get(job) == topic.rest_ends_at_ms:
            topic.rest_ends_at_ms -= shorter_ms
            self._not_before_ms[job] = topic.rest_ends_at_ms
            self._pause(job, max(now_ms, topic.rest_ends_at_ms))

    def _known_topic(self, topic_id: int) -> _Topic:
        """A topic that the database has named."""
        self._unknown.discard(topic_id)
        return self._topic(topic_id)

    def _topic(self, topic_id: int) -> _Topic:
        return self._topics.setdefault(topic_id, _Topic())

    def _add_due(self, topic_id: int, due_at_us: int) -> None:
        timer = _DueTimer(topic_id, due_at_us // self._topic(topic_id).granularity_us)
        self._until_us[timer] = max(self._until_us.get(timer, 0), due_at_us)
        self._due.add(timer, due_at_us / 1_000)

    def _try_again_now(self, now_ms: float) -> None:
        """Let failed jobs wait no longer, because the database is back. The pauses of a job that fails again
        continue to grow."""
        for job in self._failures:
            self._not_before_ms.pop(job, None)
            self._pause(job, now_ms)

    def _pause(self, job: Job, until_ms: float) -> None:
        self._pauses.add(job, until_ms)

    def _want(self, job: Job, now_ms: float) -> None:
        if job in self._running:
            self._again.add(job)
        elif self._not_before_ms.get(job, 0.0) > now_ms:
            self._pause(job, self._not_before_ms[job])
        elif job not in self._in_queue:
            self._in_queue.add(job)
            self._queued[type(job)].append(job)

    def _release(self, job: Job, now_ms: float) -> None:
        self._running.remove(job)
        self._lanes_taken[type(job)] -= 1
        if job in self._again:
            self._again.remove(job)
            self._want(job, now_ms)
