"""The timing wheel against a model that cannot be wrong: a list that is sorted each time it is asked."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from duewheel.store.wheel.timing_wheel import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS, TimingWheel

YEAR_9999_MS = 253_402_300_799_999
TICKS_MS = st.sampled_from([1, 2, 5, 10, 100, 1_000])
PAYLOADS = st.integers(0, 40)

# Distances of every size, and those around which figures turn over.
_EDGES = [0, 1, SECOND_MS, MINUTE_MS, HOUR_MS, DAY_MS, 1_000 * DAY_MS]
DISTANCES_MS = st.one_of(
    st.builds(lambda edge, off: max(0, edge + off), st.sampled_from(_EDGES), st.integers(-2, 2)),
    st.integers(0, 3 * SECOND_MS),
    st.integers(0, 3 * HOUR_MS),
    st.integers(0, 3_000 * DAY_MS),
)


class WheelAgainstSortedList(RuleBasedStateMachine):
    """Adds, cancels and jumps of the clock; what fires is compared with the model's answer each time."""

    @initialize(
        tick_ms=TICKS_MS,
        start_ms=st.one_of(
            st.integers(0, YEAR_9999_MS),
            st.sampled_from([0, DAY_MS - 1, 1_000 * DAY_MS - 1, 1_000_000 * DAY_MS - 1]),
        ),
    )
    def start(self, tick_ms: int, start_ms: int) -> None:
        self.tick_ms = tick_ms
        self.now_ms = start_ms
        self.wheel = TimingWheel[int](start_ms, tick_ms=tick_ms)
        # payload: (fires_at_ms, due_at_ms, order of adding)
        self.waiting: dict[int, tuple[int, int, int]] = {}
        self.added = 0
        self.fired = 0
        self.cancelled = 0
        self.replaced = 0

    @rule(payload=PAYLOADS, distance_ms=DISTANCES_MS)
    def add_ahead(self, payload: int, distance_ms: int) -> None:
        self._add(payload, self.now_ms + distance_ms)

    @rule(payload=PAYLOADS, distance_ms=DISTANCES_MS)
    def add_behind(self, payload: int, distance_ms: int) -> None:
        self._add(payload, max(0, self.now_ms - distance_ms))

    @rule(payload=PAYLOADS)
    def add_in_the_far_future(self, payload: int) -> None:
        self._add(payload, YEAR_9999_MS * 1_000)

    @rule(payload=PAYLOADS)
    def cancel(self, payload: int) -> None:
        known = self.waiting.pop(payload, None)
        assert self.wheel.cancel(payload) is (known is not None)
        self.cancelled += known is not None

    @rule(distance_ms=DISTANCES_MS)
    def go_on(self, distance_ms: int) -> None:
        self._advance(self.now_ms + distance_ms)

    @rule(distance_ms=DISTANCES_MS)
    def step_back(self, distance_ms: int) -> None:
        self._advance(max(0, self.now_ms - distance_ms))

    @rule()
    def wake_when_told(self) -> None:
        wake_at_ms = self.wheel.next_due_at_ms()
        if wake_at_ms is None or wake_at_ms <= self.now_ms:
            return
        self._advance(wake_at_ms - 1, expect_nothing=True)
        fired_before = self.fired
        self._advance(wake_at_ms)
        assert self.fired > fired_before, "woke in vain"

    @invariant()
    def wheel_and_model_hold_the_same(self) -> None:
        if not hasattr(self, "wheel"):
            return
        assert len(self.wheel) == len(self.waiting)
        assert all(payload in self.wheel for payload in self.waiting)
        expected = min((fires_at_ms for fires_at_ms, _, _ in self.waiting.values()), default=None)
        assert self.wheel.next_due_at_ms() == expected
        assert self.added == self.fired + self.cancelled + self.replaced + len(self.waiting)

    def _add(self, payload: int, due_at_ms: int) -> None:
        known = self.waiting.get(payload)
        is_set = known is None or due_at_ms < known[1]
        assert self.wheel.add(payload, due_at_ms) is is_set
        if is_set:
            fires_at_ms = -(-due_at_ms // self.tick_ms) * self.tick_ms
            self.waiting[payload] = (fires_at_ms, due_at_ms, self.added)
            self.added += 1
            self.replaced += known is not None

    def _advance(self, now_ms: int, *, expect_nothing: bool = False) -> None:
        self.now_ms = now_ms
        due = sorted(
            (due_at_ms, order, payload)
            for payload, (fires_at_ms, due_at_ms, order) in self.waiting.items()
            if fires_at_ms <= now_ms
        )
        fired = self.wheel.advance(now_ms)
        assert all(timer.due_at_ms <= now_ms for timer in fired), "early"
        assert [(timer.due_at_ms, timer.payload) for timer in fired] == [(at, what) for at, _, what in due]
        assert not (expect_nothing and fired)
        for _, _, payload in due:
            del self.waiting[payload]
        self.fired += len(fired)


WheelAgainstSortedList.TestCase.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
TestWheelAgainstSortedList = WheelAgainstSortedList.TestCase
