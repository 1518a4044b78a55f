"""The timing wheel against its specification: the class docstring, sentence by sentence."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from duewheel.store.wheel.timing_wheel import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS, Timer, TimingWheel

NOON_MS = 1_654_732_800_000  # 2022-06-09 00:00:00 UTC, a beginning of a day: figures read off directly
YEAR_9999_MS = int(datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()) * 1_000


def at(hour: int, minute: int = 0, second: int = 0, millisecond: int = 0) -> int:
    return NOON_MS + hour * HOUR_MS + minute * MINUTE_MS + second * SECOND_MS + millisecond


def layout(wheel: TimingWheel[str]) -> str:
    """What repr shows of the occupied slots, without where the wheel stands."""
    return repr(wheel).partition(", ")[2].rstrip(")")


class CountingWheel(TimingWheel[int]):
    """Counts how often a timer is given a place: the unit of work of a wheel."""

    __slots__ = ("placed",)

    def __init__(self, now_ms: int, *, tick_ms: int = 1) -> None:
        super().__init__(now_ms, tick_ms=tick_ms)
        self.placed = 0

    def _place(self, payload: int, due_at_ms: int) -> None:
        self.placed += 1
        super()._place(payload, due_at_ms)


def test_w01_timers_fall_from_level_to_level_as_the_docstring_shows() -> None:
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


def test_w01_a_later_day_makes_an_overflow_level_on_demand() -> None:
    wheel = TimingWheel[str](at(12))
    assert "overflow" not in repr(wheel)
    wheel.add("tomorrow", at(36))
    wheel.add("year 9999", YEAR_9999_MS)
    assert "overflow_1d={" in repr(wheel)
    assert "overflow_1000000d={" in repr(wheel)
    assert wheel.advance(at(36) - 1) == []
    assert wheel.advance(at(36)) == [Timer(at(36), "tomorrow")]
    assert wheel.next_due_at_ms() == YEAR_9999_MS
    assert wheel.advance(YEAR_9999_MS - 1) == []
    assert wheel.advance(YEAR_9999_MS) == [Timer(YEAR_9999_MS, "year 9999")]
    assert wheel.next_due_at_ms() is None


def test_d01_a_slot_of_one_millisecond_fires_exactly() -> None:
    wheel = TimingWheel[str](1_654_770_600_000)
    wheel.add("order", 1_654_773_600_000)
    assert wheel.advance(1_654_773_599_999) == []
    assert wheel.advance(1_654_773_600_000) == [Timer(1_654_773_600_000, "order")]


@pytest.mark.parametrize(
    ("due_at_ms", "fires_at_ms"), [(1_000, 1_000), (1_001, 1_100), (1_099, 1_100), (1_100, 1_100)]
)
def test_d05_a_longer_slot_fires_at_its_end_and_never_early(due_at_ms: int, fires_at_ms: int) -> None:
    wheel = TimingWheel[str](0, tick_ms=100)
    wheel.add("x", due_at_ms)
    assert wheel.next_due_at_ms() == fires_at_ms
    assert wheel.advance(fires_at_ms - 1) == []
    assert wheel.advance(fires_at_ms) == [Timer(due_at_ms, "x")]


def test_timers_of_one_long_slot_come_out_in_the_order_of_their_instants() -> None:
    wheel = TimingWheel[str](0, tick_ms=100)
    for due_at_ms in (1_090, 1_010, 1_050):
        wheel.add(str(due_at_ms), due_at_ms)
    assert [timer.due_at_ms for timer in wheel.advance(2_000)] == [1_010, 1_050, 1_090]


def test_d03_an_instant_that_has_passed_fires_at_the_next_advance() -> None:
    wheel = TimingWheel[str](at(12))
    wheel.add("late", at(11))
    wheel.add("now", at(12))
    assert wheel.next_due_at_ms() == at(11)
    assert wheel.advance(at(12)) == [Timer(at(11), "late"), Timer(at(12), "now")]


def test_an_earlier_instant_replaces_and_a_later_one_does_not() -> None:
    wheel = TimingWheel[str](at(12))
    assert wheel.add("x", at(14))
    assert wheel.add("x", at(13))
    assert not wheel.add("x", at(13))
    assert not wheel.add("x", at(15))
    assert len(wheel) == 1
    assert wheel.advance(at(16)) == [Timer(at(13), "x")]
    assert wheel.advance(at(17)) == []


def test_cancel_takes_a_timer_from_every_level() -> None:
    wheel = TimingWheel[str](at(12))
    instants = [at(11), at(12, 0, 0, 7), at(12, 0, 7), at(12, 7), at(19), at(24 * 7), YEAR_9999_MS]
    for due_at_ms in instants:
        wheel.add(str(due_at_ms), due_at_ms)
    for due_at_ms in instants:
        assert str(due_at_ms) in wheel
        assert wheel.cancel(str(due_at_ms))
        assert not wheel.cancel(str(due_at_ms))
    assert len(wheel) == 0
    assert layout(wheel) == ""
    assert wheel.next_due_at_ms() is None
    assert wheel.advance(YEAR_9999_MS) == []


def test_x13_a_clock_that_steps_back_fires_nothing_twice_and_nothing_early() -> None:
    wheel = TimingWheel[str](at(12))
    wheel.add("fires before", at(12, 30))
    wheel.add("waits", at(14))
    assert wheel.advance(at(13)) == [Timer(at(12, 30), "fires before")]
    assert wheel.advance(at(12)) == []
    wheel.add("added after", at(12, 30))
    assert wheel.next_due_at_ms() == at(12, 30)
    assert wheel.advance(at(12, 29, 59, 999)) == []
    assert wheel.advance(at(12, 30)) == [Timer(at(12, 30), "added after")]
    assert wheel.advance(at(13, 59, 59, 999)) == []
    assert wheel.advance(at(14)) == [Timer(at(14), "waits")]


def test_a_jump_over_days_costs_what_fires_and_not_what_lies_between() -> None:
    wheel = CountingWheel(at(0))
    days = 400
    for day in range(days):
        wheel.add(day, at(12) + day * DAY_MS)
    assert wheel.placed == days
    assert [timer.payload for timer in wheel.advance(at(12) + 10 * 365 * DAY_MS)] == list(range(days))
    # Each timer falls at most once for each level it is on: days, hours and then out.
    assert wheel.placed <= 3 * days


def test_w05_work_per_timer_does_not_grow_with_the_number_of_timers() -> None:
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


@pytest.mark.parametrize("tick_ms", [0, -1, 3, 7, 1_001])
def test_a_tick_that_does_not_divide_a_second_is_refused(tick_ms: int) -> None:
    with pytest.raises(ValueError, match="divide 1000"):
        TimingWheel[str](0, tick_ms=tick_ms)


def test_instants_before_1970_are_refused() -> None:
    wheel = TimingWheel[str](0)
    with pytest.raises(ValueError, match="due_at_ms is -1"):
        wheel.add("x", -1)
    with pytest.raises(ValueError, match="now_ms is -1"):
        wheel.advance(-1)
    with pytest.raises(ValueError, match="now_ms is -5"):
        TimingWheel[str](-5)
