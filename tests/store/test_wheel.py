"""The timing wheel: what its docstring shows, what it costs, and a model that cannot be wrong."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from duewheel.store.wheel.timing_wheel import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS, TimingWheel

NOON_MS = 1_654_732_800_000  # 2022-06-09 00:00:00 UTC, a beginning of a day: figures read off directly


def at(hour: int, minute: int = 0, second: int = 0, millisecond: int = 0) -> int:
    return NOON_MS + hour * HOUR_MS + minute * MINUTE_MS + second * SECOND_MS + millisecond


def layout(wheel: TimingWheel[str]) -> str:
    """What repr shows of the occupied slots, without where the wheel stands."""
    return repr(wheel).partition(", ")[2].rstrip(")")


class CountingWheel(TimingWheel[int]):
    """Counts how often a timer is given a place: the unit of work of a wheel."""

    __slots__ = ("placed",)

    def __init__(self, now_ms: int) -> None:
        super().__init__(now_ms)
        self.placed = 0

    def _place(self, payload: int, due_at_ms: int) -> None:
        self.placed += 1
        super()._place(payload, due_at_ms)


def test_w01_timers_fall_through_levels_as_the_docstring_shows() -> None:
    wheel = TimingWheel[str](at(12, 0, 58))
    wheel.add("A", at(12, 0, 58, 250))
    wheel.add("B", at(12, 0, 59, 100))
    wheel.add("C", at(12, 7, 30, 500))
    wheel.add("D", at(15))
    rows = []
    for stands_at_ms in (
        at(12, 0, 58),
        at(12, 0, 58, 249),
        at(12, 0, 58, 250),
        at(12, 0, 59),
        at(12, 7, 29, 999),
        at(12, 7, 30, 500),
        at(15),
    ):
        fired = "".join(timer.payload for timer in wheel.advance(stands_at_ms))
        rows.append((layout(wheel), fired))
    assert rows == [
        ("ms={250: 1}, s={59: 1}, min={7: 1}, h={15: 1}", ""),
        ("ms={250: 1}, s={59: 1}, min={7: 1}, h={15: 1}", ""),
        ("s={59: 1}, min={7: 1}, h={15: 1}", "A"),
        ("ms={100: 1}, min={7: 1}, h={15: 1}", ""),
        ("s={30: 1}, h={15: 1}", "B"),
        ("h={15: 1}", "C"),
        ("", "D"),
    ]


def test_a_jump_over_days_costs_only_the_timers_that_fire() -> None:
    wheel = CountingWheel(at(0))
    days = 400
    for day in range(days):
        wheel.add(day, at(12) + day * DAY_MS)
    assert wheel.placed == days
    assert [timer.payload for timer in wheel.advance(at(12) + 10 * 365 * DAY_MS)] == list(range(days))
    # Each timer falls at most once for each level it is on: days, hours and then out.
    assert wheel.placed <= 3 * days


def test_w05_work_per_timer_does_not_grow_with_other_timers() -> None:
    def placed_per_timer(timers: int) -> float:
        wheel = CountingWheel(at(0))
        for payload in range(timers):
            wheel.add(payload, at(0) + payload * 7_919 % DAY_MS + 1)
        fired = 0
        for minute in range(24 * 60 + 1):
            fired += len(wheel.advance(at(0, minute)))
        assert fired == timers
        return wheel.placed / timers

    levels_and_out = 5  # h, min, s, ms, and fired
    assert placed_per_timer(20_000) <= levels_and_out
    assert placed_per_timer(2_000) <= levels_and_out


def test_w05_memory_follows_what_waits_and_not_what_has_passed() -> None:
    wheel = CountingWheel(at(0))
    for payload in range(10_000):
        wheel.add(payload, at(0) + payload * 37)
        if payload % 2:
            wheel.cancel(payload)
        wheel.advance(at(0) + payload * 37)
    assert len(wheel) == 0
    assert all(not level.slots and not level.occupied for level in wheel._levels)


def test_a_step_back_moves_no_timer_unless_one_is_set_in_between() -> None:
    wheel = CountingWheel(at(12))
    for payload in range(1_000):
        wheel.add(payload, at(13, 0, 0, payload))
    placed = wheel.placed
    for step in range(1_000):
        assert wheel.advance(at(12) - step % 2) == []
    assert wheel.placed == placed


def test_instants_before_1970_are_refused() -> None:
    wheel = TimingWheel[str](0)
    with pytest.raises(ValueError, match="due_at_ms is -1"):
        wheel.add("x", -1)
    with pytest.raises(ValueError, match="now_ms is -1"):
        wheel.advance(-1)
    with pytest.raises(ValueError, match="now_ms is -5"):
        TimingWheel[str](-5)


YEAR_9999_MS = 253_402_300_799_999
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
        start_ms=st.one_of(
            st.integers(0, YEAR_9999_MS),
            st.sampled_from([0, DAY_MS - 1, 1_000 * DAY_MS - 1, 1_000_000 * DAY_MS - 1]),
        ),
    )
    def start(self, start_ms: int) -> None:
        self.now_ms = start_ms
        self.wheel = TimingWheel[int](start_ms)
        # payload: (due_at_ms, order of adding)
        self.waiting: dict[int, tuple[int, int]] = {}
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
        expected = min((due_at_ms for due_at_ms, _ in self.waiting.values()), default=None)
        assert self.wheel.next_due_at_ms() == expected
        assert self.added == self.fired + self.cancelled + self.replaced + len(self.waiting)

    def _add(self, payload: int, due_at_ms: int) -> None:
        known = self.waiting.get(payload)
        is_set = known is None or due_at_ms < known[0]
        assert self.wheel.add(payload, due_at_ms) is is_set
        if is_set:
            self.waiting[payload] = (due_at_ms, self.added)
            self.added += 1
            self.replaced += known is not None

    def _advance(self, now_ms: int, *, expect_nothing: bool = False) -> None:
        self.now_ms = now_ms
        due = sorted(
            (due_at_ms, order, payload)
            for payload, (due_at_ms, order) in self.waiting.items()
            if due_at_ms <= now_ms
        )
        fired = self.wheel.advance(now_ms)
        assert all(timer.due_at_ms <= now_ms for timer in fired), "early"
        assert [(timer.due_at_ms, timer.payload) for timer in fired] == [(at, what) for at, _, what in due]
        assert not (expect_nothing and fired)
        for _, _, payload in due:
            del self.waiting[payload]
        self.fired += len(fired)


WheelAgainstSortedList.TestCase.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
TestWheelAgainstSortedList = WheelAgainstSortedList.TestCase
