"""The decisions of the wheel, played against a simulated database, with no clock but the argument.

The simulated database keeps the contract of the real one: what a tick releases, what it calls unsettled, what
a look finds, and when a sender notifies. Latencies, commits, clocks and failures are the example's.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from duewheel.store.database.database_clock import ClockReading
from duewheel.store.wheel.wheel_schedule import (
    LANES,
    MOST_FOLLOWED_UP,
    MOST_UNKNOWN,
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
    WheelSchedule,
)

START_MS = 5_000_000.25
DISTANCE_MS = 1_654_770_600_000.0
POLL_MS = 500.0
LOOKAHEAD_MS = 2_000.0
HOUR_MS = 3_600_000.0
OCCURRENCES_MS = 2_000.0

#: The resolution of the database's clock; that of the simulation's numbers is a quarter of it.
MICROSECOND_MS = 0.001

#: A sender notifies of what is due sooner than this after it was sent.
NOTIFY_MS = 600.0
#: ... unless the wheel comes by itself at the end of the rest, and not as soon as this.
QUIET_MS = 20.0
#: A topic that was released twice within so long is busy.
NEAR_MS = 50
#: One that was so short ago is so still; what is due so long after that needs no notification.
BUSY_FOR_SENDERS_MS = 100
QUIET_FOR_SENDERS_MS = 200


@dataclass(eq=False)
class Sent:
    """A message: sent in a transaction that commits later, due by the database's clock."""

    topic_id: int
    sent_ms: float
    committed_ms: float
    due_us: int
    released_ms: float | None = None


@dataclass
class Topic:
    """The tick log of a topic."""

    granularity_us: int
    hi_us: int | None = None
    #: Whether senders leave what comes next to a wheel that ticks it on.
    busy: bool = False
    open_at_tick: list[Sent] = field(default_factory=list)
    released_at_us: list[int] = field(default_factory=list)
    ticked_ms: list[float] = field(default_factory=list)


class Simulation:
    """A schedule, a database and the time between them."""

    def __init__(
        self, granularities_us: dict[int, int], *, listen: bool = True, one_way_ms: float = 0.3
    ) -> None:
        self.now_ms = START_MS
        self.distance_ms = DISTANCE_MS
        self.listen = listen
        self.one_way_ms = one_way_ms
        self.topics = {topic_id: Topic(granularity) for topic_id, granularity in granularities_us.items()}
        self.messages: list[Sent] = []
        self.lease_ends: dict[tuple[int, int], int] = {}
        self.revived_at_us: list[int] = []
        self.followed_up: list[tuple[int, ...]] = []
        self.fails: Callable[[Job], bool] = lambda job: False
        self.begun: list[tuple[float, Job]] = []
        self.running: set[Job] = set()
        self.takes_ms: dict[Job, float] = {}
        self.most_timers = 0
        self.pages, self.pages_left = 1, 0
        self.schedule = WheelSchedule(START_MS, poll_ms=POLL_MS, lookahead_ms=LOOKAHEAD_MS)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def database_us(self) -> int:
        return math.floor((self.now_ms + self.distance_ms) * 1_000)

    def at(self, after_ms: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now_ms + after_ms, next(self._order), event))

    def send(self, topic_id: int, delay_ms: float, *, commit_after_ms: float = 0.1) -> Sent:
        topic = self.topics[topic_id]
        now_us = self.database_us()
        due_us = max(now_us + math.floor(delay_ms * 1_000), now_us, (topic.hi_us or 0) + 1)
        message = Sent(topic_id, self.now_ms, self.now_ms + commit_after_ms, due_us)
        self.messages.append(message)
        quiet_until_us = 0
        if topic.hi_us is not None and topic.hi_us + topic.granularity_us > now_us + 1_000 * QUIET_MS:
            quiet_until_us = topic.hi_us + topic.granularity_us
        if topic.busy and topic.hi_us is not None and topic.hi_us > now_us - 1_000 * BUSY_FOR_SENDERS_MS:
            quiet_until_us = max(quiet_until_us, topic.hi_us + 1_000 * QUIET_FOR_SENDERS_MS)
        if self.listen and quiet_until_us < due_us < now_us + 1_000 * NOTIFY_MS:
            self.at(commit_after_ms + self.one_way_ms, lambda: self._notify(message))
        return message

    def run_for(self, duration_ms: float) -> None:
        end_ms = self.now_ms + duration_ms
        for _ in range(2_000_000):
            for job in self.schedule.take(self.now_ms):
                self._begin(job)
            self.most_timers = max(self.most_timers, self.schedule.waiting())
            wake_ms = self.now_ms + self.schedule.sleep_ms(self.now_ms)
            if self._events:
                wake_ms = min(wake_ms, self._events[0][0])
            if wake_ms > end_ms:
                self.now_ms = end_ms
                return
            self.now_ms = wake_ms
            while self._events and self._events[0][0] <= self.now_ms:
                heapq.heappop(self._events)[2]()
        raise AssertionError("the wheel spins")

    def ticks(self, topic_id: int) -> list[float]:
        return [at_ms for at_ms, job in self.begun if job == Tick(topic_id)]

    def _notify(self, message: Sent) -> None:
        self.schedule.notified(message.topic_id, message.due_us, self.now_ms)

    def _begin(self, job: Job) -> None:
        assert job not in self.running, "a job runs twice at once"
        self.running.add(job)
        assert sum(type(other) is type(job) for other in self.running) <= LANES[type(job)]
        self.begun.append((self.now_ms, job))
        sent_ms = self.now_ms
        self.at(self.one_way_ms, lambda: self._arrive(job, sent_ms))

    def _arrive(self, job: Job, sent_ms: float) -> None:
        if self.fails(job):
            self.at(self.one_way_ms, lambda: self._fail(job))
            return
        answer = self._answer(
            job, ClockReading(self.database_us() / 1_000, sent_ms, sent_ms + 2 * self.one_way_ms)
        )
        self.at(self.one_way_ms + self.takes_ms.get(job, 0.0), lambda: self._finish(job, answer))

    def _finish(self, job: Job, answer: Answer) -> None:
        self.running.remove(job)
        self.schedule.finished(job, answer, self.now_ms)

    def _fail(self, job: Job) -> None:
        self.running.remove(job)
        self.schedule.failed(job, self.now_ms)

    def _answer(self, job: Job, reading: ClockReading) -> Answer:
        match job:
            case Poll():
                return PollAnswer(reading, self._due_instants(), self._ends())
            case Scan():
                self.pages_left = (self.pages_left or self.pages) - 1
                return PollAnswer(reading, more=self.pages_left > 0)
            case Tick(topic_id):
                return self._tick(topic_id, reading)
            case FollowUp(topic_ids):
                self.followed_up.append(topic_ids)
                return self._follow_up(topic_ids, reading)
            case Revive(group_id, topic_id):
                self.revived_at_us.append(self.database_us())
                if self.lease_ends.get((group_id, topic_id), math.inf) <= self.database_us():
                    del self.lease_ends[group_id, topic_id]
            case Maintain():
                return PauseAnswer(HOUR_MS)
            case SendOccurrences():
                return PauseAnswer(OCCURRENCES_MS)
        return DoneAnswer()

    def _visible(self, topic_id: int) -> list[Sent]:
        return [
            message
            for message in self.messages
            if message.topic_id == topic_id
            and message.released_ms is None
            and message.committed_ms <= self.now_ms
        ]

    def _due_instants(self) -> list[DueInstant]:
        to_us = self.database_us() + 1_000 * LOOKAHEAD_MS
        due: list[DueInstant] = []
        for topic_id, topic in self.topics.items():
            first_us = self._first_due_us(topic_id, to_us)
            if first_us is not None:
                due.append(DueInstant(topic_id, first_us, topic.granularity_us))
        return due

    def _first_due_us(self, topic_id: int, to_us: float) -> int | None:
        hi_us = self.topics[topic_id].hi_us
        after_us = -math.inf if hi_us is None else hi_us
        due_us = (message.due_us for message in self._visible(topic_id))
        return min((at_us for at_us in due_us if after_us < at_us <= to_us), default=None)

    def _ends(self) -> list[LeaseEnd]:
        to_us = self.database_us() + 1_000 * LOOKAHEAD_MS
        return [LeaseEnd(*pair, ends_us) for pair, ends_us in self.lease_ends.items() if ends_us <= to_us]

    def _follow_up(self, topic_ids: tuple[int, ...], reading: ClockReading) -> FollowUpAnswer:
        saw_open = {topic_id: self.topics[topic_id].open_at_tick for topic_id in topic_ids}
        return FollowUpAnswer(
            late=frozenset(
                topic_id
                for topic_id in topic_ids
                if any(message in saw_open[topic_id] for message in self._visible(topic_id))
            ),
            unsettled=frozenset(
                topic_id
                for topic_id, messages in saw_open.items()
                if any(message.committed_ms > self.now_ms for message in messages)
            ),
            reading=reading,
        )

    def _tick(self, topic_id: int, reading: ClockReading) -> TickAnswer | DoneAnswer:
        if topic_id not in self.topics:
            return DoneAnswer(reading)
        topic = self.topics[topic_id]
        topic.ticked_ms.append(self.now_ms)
        now_us = max(self.database_us(), (topic.hi_us or 0) + 1)
        visible = self._visible(topic_id)
        ready = [
            message
            for message in visible
            if message.due_us <= now_us
            and (topic.hi_us is None or message.due_us > topic.hi_us or message in topic.open_at_tick)
        ]
        if ready:
            for message in ready:
                message.released_ms = self.now_ms
            near_us = max(2 * topic.granularity_us, 1_000 * NEAR_MS)
            topic.busy = topic.hi_us is not None and now_us - topic.hi_us <= near_us
            topic.hi_us = now_us
            topic.released_at_us.append(now_us)
            topic.open_at_tick = [
                message
                for message in self.messages
                if message.topic_id == topic_id and message.sent_ms <= self.now_ms < message.committed_ms
            ]
        return TickAnswer(
            reading=reading,
            asked_at_us=self.database_us(),
            released=bool(ready),
            hi_us=topic.hi_us,
            busy=bool(ready) and topic.busy,
            unsettled=any(message.committed_ms > self.now_ms for message in topic.open_at_tick),
            granularity_us=topic.granularity_us,
            next_due_us=(
                None if ready else self._first_due_us(topic_id, self.database_us() + 1_000 * LOOKAHEAD_MS)
            ),
        )


def is_released(message: Sent) -> bool:
    return message.released_ms is not None


def lateness_ms(simulation: Simulation, message: Sent) -> float:
    """How long after it was both due and committed the message was released."""
    assert message.released_ms is not None, "not released"
    due_ms = message.due_us / 1_000 - simulation.distance_ms
    return message.released_ms - max(due_ms, message.committed_ms)


def test_w05_an_idle_topic_is_ticked_at_the_instant() -> None:
    simulation = Simulation({1: 100_000})
    simulation.run_for(10_000)
    for delay_ms in (50.0, 333.4, 1_700.9):
        message = simulation.send(1, delay_ms)
        simulation.run_for(10_000)
        assert 0 <= lateness_ms(simulation, message) <= simulation.one_way_ms + 0.01


def test_nothing_to_do_is_one_look_per_poll_and_no_tick() -> None:
    simulation = Simulation({1: 1_000, 2: 100_000})
    simulation.run_for(60_000)
    jobs = [job for _, job in simulation.begun]
    assert jobs.count(Maintain()) == 1
    assert jobs.count(SendOccurrences()) <= 60_000 / OCCURRENCES_MS + 1
    assert jobs.count(Scan()) == 1
    assert jobs.count(Poll()) == len(jobs) - 2 - jobs.count(SendOccurrences()) <= 60_000 / POLL_MS + 1


def test_upkeep_is_hourly_and_waits_longer_after_each_failure() -> None:
    schedule = WheelSchedule(0, poll_ms=POLL_MS, lookahead_ms=LOOKAHEAD_MS)
    pauses: list[float] = []
    now_ms = 0.0
    for _ in range(4):
        assert Maintain() in schedule.take(now_ms)
        # At a later step.
        schedule.finished(Maintain(), PauseAnswer(0.0, is_step=True), now_ms)
        assert Maintain() in schedule.take(now_ms)
        pauses.append(schedule.failed(Maintain(), now_ms))
        now_ms += 1_000 * pauses[-1] + 1
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8])
    assert Maintain() in schedule.take(now_ms)
    schedule.finished(Maintain(), PauseAnswer(HOUR_MS), now_ms)
    assert Maintain() not in schedule.take(now_ms + HOUR_MS - 10)
    now_ms += HOUR_MS + 10
    assert Maintain() in schedule.take(now_ms)
    assert schedule.failed(Maintain(), now_ms) == pytest.approx(0.1)


def test_a_job_waiting_for_a_lock_pauses_for_at_most_two_seconds() -> None:
    schedule = WheelSchedule(0, poll_ms=POLL_MS, lookahead_ms=LOOKAHEAD_MS)
    pauses: list[float] = []
    for _ in range(7):
        now_ms = 1_000 * sum(pauses) + len(pauses)
        assert Maintain() in schedule.take(now_ms)
        pauses.append(schedule.failed(Maintain(), now_ms, waits_for_lock=True))
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 2, 2])


def test_a_busy_topic_is_ticked_once_per_granularity() -> None:
    simulation = Simulation({1: 100_000})
    for _ in range(2_000):
        simulation.send(1, 30)
        simulation.run_for(5)
    released = simulation.topics[1].released_at_us
    assert all(later - earlier >= 100_000 for earlier, later in itertools.pairwise(released))
    assert 95 <= len(released) <= 101
    simulation.run_for(1_000)
    assert max(lateness_ms(simulation, message) for message in simulation.messages) <= 100 + 3


def test_w02_a_message_now_and_then_costs_two_ticks() -> None:
    """Else a hundred topics with two messages a second would leave the wheel no time to be punctual."""
    simulation = Simulation({1: 20_000})
    for _ in range(100):
        simulation.send(1, 30)
        simulation.run_for(500)
    assert all(is_released(message) for message in simulation.messages)
    assert len(simulation.ticks(1)) <= 200


def test_a_rest_ends_with_the_granularity_that_was_set_meanwhile() -> None:
    simulation = Simulation({1: 3_600_000_000})
    simulation.send(1, 700)
    simulation.run_for(2_000)
    simulation.topics[1].granularity_us = 1_000
    message = simulation.send(1, 1_500)
    simulation.run_for(3_000)
    assert lateness_ms(simulation, message) <= 3


def test_d05_a_busy_topic_of_5_ms_is_ticked_every_5_ms() -> None:
    simulation = Simulation({1: 5_000}, one_way_ms=0.8)
    simulation.takes_ms[Tick(1)] = 2.3
    for _ in range(2_000):
        simulation.send(1, 30)
        simulation.run_for(1)
    rests_ms = [later - earlier for earlier, later in itertools.pairwise(simulation.ticks(1))]
    assert rests_ms[1:] == pytest.approx([5.0] * (len(rests_ms) - 1), abs=0.01)


def test_a_scan_resumes_at_a_failed_page() -> None:
    simulation = Simulation({1: 1_000})
    simulation.pages = 4
    simulation.takes_ms[Scan()] = 5_000
    failing = iter([False, True])
    simulation.fails = lambda job: job == Scan() and next(failing, False)
    for _ in range(10):
        message = simulation.send(1, 700)
        simulation.run_for(1_500)
        assert lateness_ms(simulation, message) <= 2
    simulation.run_for(20_000)
    assert sum(job == Scan() for _, job in simulation.begun) == 5
    scanned_ms = simulation.now_ms
    simulation.run_for(60_000)
    assert sum(job == Scan() for at_ms, job in simulation.begun if at_ms > scanned_ms) >= 1


def test_w02_a_topic_that_blocks_does_not_make_another_late() -> None:
    simulation = Simulation({1: 1_000, 2: 1_000})
    simulation.run_for(1_000)
    simulation.takes_ms[Tick(1)] = 5_000
    simulation.send(1, 10)
    simulation.run_for(1_000)
    assert Tick(1) in simulation.running
    for _ in range(20):
        message = simulation.send(2, 50)
        simulation.run_for(100)
        assert lateness_ms(simulation, message) <= 3
    assert Tick(1) in simulation.running


def test_an_unsettled_topic_is_followed_up_at_growing_pauses() -> None:
    simulation = Simulation({1: 10_000})
    simulation.run_for(1_000)
    late = simulation.send(1, 0, commit_after_ms=10_000)
    simulation.send(1, 0)
    simulation.run_for(10_000)
    asked_ms = [at_ms for at_ms, job in simulation.begun if job == FollowUp()]
    pauses_ms = [later - earlier for earlier, later in itertools.pairwise(asked_ms)]
    assert all(990 <= pause_ms <= 1_010 for pause_ms in pauses_ms[-8:])
    assert max(pauses_ms) <= 1_010
    assert len(pauses_ms) <= 8 + 7
    assert len(simulation.ticks(1)) <= 3
    simulation.run_for(2_000)
    assert lateness_ms(simulation, late) <= 1_000 + 5
    ticks = len(simulation.ticks(1))
    simulation.run_for(60_000)
    assert len(simulation.ticks(1)) == ticks
    assert len(simulation.followed_up) <= len(asked_ms) + 2


def test_x18_an_open_transaction_costs_one_question_a_second() -> None:
    simulation = Simulation(dict.fromkeys(range(1, 151), 10_000))
    simulation.run_for(1_000)
    for topic_id in simulation.topics:
        simulation.run_for(7)
        simulation.send(topic_id, 0, commit_after_ms=60_000)
        simulation.send(topic_id, 0)
    simulation.run_for(10_000)
    begun = len(simulation.begun)
    simulation.run_for(20_000)
    jobs = [job for _, job in simulation.begun[begun:]]
    assert not any(isinstance(job, Tick) for job in jobs)
    assert 19 <= jobs.count(FollowUp()) <= 21
    assert simulation.followed_up[-1] == tuple(simulation.topics)
    simulation.run_for(60_000)
    assert all(is_released(message) for message in simulation.messages)


def test_x25_a_thousand_unsettled_topics_are_asked_about_at_once() -> None:
    simulation = Simulation(dict.fromkeys(range(1, 1_101), 10_000))
    simulation.run_for(1_000)
    for topic_id in simulation.topics:
        simulation.send(topic_id, 0, commit_after_ms=5_000)
        simulation.send(topic_id, 0)
    simulation.run_for(4_000)
    assert max(map(len, simulation.followed_up)) == MOST_FOLLOWED_UP
    assert set(itertools.chain(*simulation.followed_up)) == set(simulation.topics)
    simulation.run_for(10_000)
    assert all(is_released(message) for message in simulation.messages)


def test_d07_a_lease_is_revived_when_it_ends() -> None:
    simulation = Simulation({1: 100_000})
    simulation.run_for(1_000)
    ends_us = simulation.database_us() + 5_000_000
    simulation.lease_ends[7, 1] = ends_us
    simulation.run_for(20_000)
    assert simulation.lease_ends == {}
    assert 0 <= simulation.revived_at_us[-1] - ends_us <= 2_000
    assert len(simulation.revived_at_us) <= 2


def test_w05_timers_do_not_grow_with_what_waits() -> None:
    simulation = Simulation({1: 100_000})
    simulation.send(1, 0)
    simulation.run_for(1_000)
    for number in range(3_000):
        simulation.send(1, 300 + number / 10)
        simulation.send(1, HOUR_MS + number)
    simulation.run_for(1_000)
    assert simulation.most_timers <= LOOKAHEAD_MS * 1_000 / 100_000 + 10


def test_a_failing_topic_holds_up_no_other() -> None:
    simulation = Simulation({1: 1_000, 2: 1_000})
    simulation.run_for(1_000)
    simulation.fails = lambda job: job == Tick(1)
    poison = simulation.send(1, 10)
    simulation.run_for(20_000)
    pauses_ms = [later - earlier for earlier, later in itertools.pairwise(simulation.ticks(1))]
    assert len(pauses_ms) < 12
    assert all(later >= earlier for earlier, later in itertools.pairwise(pauses_ms))
    other = simulation.send(2, 10)
    simulation.run_for(1_000)
    assert lateness_ms(simulation, other) <= 2
    simulation.fails = lambda job: False
    simulation.run_for(30_000)
    assert poison.released_ms is not None


@pytest.mark.parametrize("listen", [True, False])
def test_after_an_outage_the_first_look_that_works_wakes_all(listen: bool) -> None:
    """Which is at once, where it hears that the database is back."""
    simulation = Simulation({1: 1_000}, listen=listen)
    simulation.run_for(1_000)
    message = simulation.send(1, 10)
    simulation.fails = lambda job: True
    simulation.run_for(300_000)
    assert not is_released(message)
    polled_ms = [at_ms for at_ms, job in simulation.begun if job == Poll()]
    assert 5 < sum(at_ms > START_MS + 1_000 for at_ms in polled_ms) < 30
    simulation.fails = lambda job: False
    if listen:
        simulation.schedule.poll_again(simulation.now_ms)
    back_ms = simulation.now_ms
    simulation.begun.clear()
    simulation.run_for(100 if listen else 31_000)
    polled_ms = [at_ms for at_ms, job in simulation.begun if job == Poll()]
    assert not listen or polled_ms[0] <= back_ms + 1
    assert message.released_ms is not None
    assert message.released_ms - polled_ms[0] <= 5


def test_topics_that_are_not_looked_after_are_not_ticked() -> None:
    schedule = WheelSchedule(0, poll_ms=POLL_MS, lookahead_ms=LOOKAHEAD_MS)
    # Before the first look a notification is left to it.
    schedule.notified(1, 0, 0)
    assert schedule.take(0) == [Poll(), Scan(), Maintain(), SendOccurrences()]
    schedule.finished(Poll(), PollAnswer(ClockReading(1_000, 0, 0), watched=frozenset({1})), 0)
    schedule.notified(2, 1_001_000, 1)
    schedule.notified(1, 1_002_000, 1)
    assert schedule.take(400) == [Tick(1)]


@st.composite
def sendings(draw: st.DrawFn) -> list[tuple[float, int, float, float]]:
    """What to send: pause before, topic, delay, time until the commit; all in ms."""
    return draw(
        st.lists(
            st.tuples(
                st.floats(0, 300),
                st.integers(1, 3),
                st.one_of(st.just(0.0), st.floats(0, 700), st.floats(0, 5_000)),
                st.one_of(st.floats(0, 10), st.floats(0, 3_000)),
            ),
            min_size=1,
            max_size=40,
        )
    )


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(sendings=sendings(), listen=st.booleans(), one_way_ms=st.floats(0.05, 3))
@example(
    sendings=[(1.6875, 1, 9.0, 0.0), (1.634765625, 1, 9.0, 0.0)], listen=False, one_way_ms=1.6346684235825855
)
def test_everything_is_released_never_early_and_in_time(
    sendings: list[tuple[float, int, float, float]], listen: bool, one_way_ms: float
) -> None:
    simulation = Simulation({1: 1_000, 2: 100_000, 3: 700_000}, listen=listen, one_way_ms=one_way_ms)
    simulation.run_for(1_000)
    for pause_ms, topic_id, delay_ms, commit_after_ms in sendings:
        simulation.run_for(pause_ms)
        simulation.send(topic_id, delay_ms, commit_after_ms=commit_after_ms)
    simulation.run_for(12_000)
    for message in simulation.messages:
        late_ms = lateness_ms(simulation, message)
        assert late_ms > -MICROSECOND_MS, "early"
        granularity_ms = simulation.topics[message.topic_id].granularity_us / 1_000
        slow = message.committed_ms - message.sent_ms > 10
        # A slow commit is found at an unsettled pause or at the next look, whichever is meant to find it.
        allowed_ms = granularity_ms + (max(POLL_MS, 1_000) if slow or not listen else 0) + 10 * one_way_ms + 5
        assert late_ms <= allowed_ms
    for topic in simulation.topics.values():
        rests = [later - earlier for earlier, later in itertools.pairwise(topic.released_at_us)]
        assert all(rest >= topic.granularity_us - 1_000 * one_way_ms for rest in rests)
    begun = len(simulation.begun)
    simulation.run_for(60_000)
    jobs = [job for _, job in simulation.begun[begun:] if job != SendOccurrences()]
    assert len(jobs) <= 60_000 / POLL_MS + 1, "still busy though nothing is due"


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(
    jumps=st.lists(st.tuples(st.floats(0, 2_000), st.floats(-30_000, 30_000)), min_size=1, max_size=5),
    delays_ms=st.lists(st.floats(0, 3_000), min_size=1, max_size=20),
)
def test_x13_the_database_clock_may_be_set_back_and_forth(
    jumps: list[tuple[float, float]], delays_ms: list[float]
) -> None:
    simulation = Simulation({1: 10_000})
    simulation.run_for(1_000)
    for pause_ms, jump_ms in jumps:
        for delay_ms in delays_ms:
            simulation.send(1, delay_ms)
        simulation.run_for(pause_ms)
        simulation.distance_ms += jump_ms
    furthest_ms = max(message.due_us for message in simulation.messages) / 1_000
    simulation.run_for(max(0, furthest_ms - simulation.database_us() / 1_000) + POLL_MS + 50)
    assert all(message.released_ms is not None for message in simulation.messages)


def test_x13_a_clock_set_by_days_stops_or_hastens_no_wheel() -> None:
    simulation = Simulation({1: 10_000})
    simulation.run_for(1_000)
    tomorrow = simulation.send(1, 24 * HOUR_MS)
    simulation.distance_ms -= 72 * HOUR_MS
    soon = simulation.send(1, 1_000)
    simulation.run_for(2_000)
    assert lateness_ms(simulation, soon) <= POLL_MS
    simulation.distance_ms += 95.9 * HOUR_MS
    simulation.run_for(1_000)
    assert not is_released(tomorrow)
    simulation.distance_ms += 0.2 * HOUR_MS
    simulation.run_for(POLL_MS + 10)
    assert is_released(tomorrow)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    fails=st.lists(st.booleans(), min_size=1, max_size=60),
    delays_ms=st.lists(st.floats(0, 3_000), max_size=20),
)
def test_failures_of_any_job_at_any_time_lose_nothing(fails: list[bool], delays_ms: list[float]) -> None:
    simulation = Simulation({1: 10_000, 2: 1_000})
    answers = iter(fails)
    simulation.fails = lambda job: next(answers, False)
    for number, delay_ms in enumerate(delays_ms):
        simulation.send(1 + number % 2, delay_ms)
        simulation.run_for(100)
    simulation.run_for(120_000)
    assert all(message.released_ms is not None for message in simulation.messages)


def test_topics_named_by_notifications_are_asked_about_once() -> None:
    world = Simulation({1: 1_000})
    world.run_for(1_000)
    for stranger in range(2, 20_002):
        world.schedule.notified(stranger, world.database_us(), world.now_ms)
    message = world.send(1, 5)
    world.run_for(LOOKAHEAD_MS)
    asked = [job.topic_id for _, job in world.begun if isinstance(job, Tick) and job.topic_id != 1]
    assert len(asked) == len(set(asked)) == MOST_UNKNOWN
    assert message.released_ms is not None
    assert message.released_ms - message.sent_ms < POLL_MS
    # There is room for others again.
    world.schedule.notified(30_000, world.database_us(), world.now_ms)
    world.run_for(10)
    assert Tick(30_000) in [job for _, job in world.begun]
    assert world.schedule.waiting() == len({Poll, Scan, Maintain, SendOccurrences})


def test_w02_portions_of_late_messages_follow_without_a_rest() -> None:
    schedule = WheelSchedule(0, poll_ms=POLL_MS, lookahead_ms=LOOKAHEAD_MS)
    assert Poll() in schedule.take(0.0)
    schedule.finished(Poll(), PollAnswer(ClockReading(0, 0, 0), [DueInstant(1, 0, 60_000_000)]), 0.0)
    assert Tick(1) in schedule.take(0.0)
    for now_ms, more in ((1.0, True), (2.0, True), (3.0, False)):
        reading = ClockReading(now_ms, now_ms, now_ms)
        answer = TickAnswer(reading, 0, True, 0, more, False, 60_000_000, more=more)
        schedule.finished(Tick(1), answer, now_ms)
        assert (Tick(1) in schedule.take(now_ms)) is more
