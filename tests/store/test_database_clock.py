"""What the wheel believes of the database's clock, reading by reading."""

from __future__ import annotations

import pytest

from duewheel.store.database.database_clock import ClockReading, DatabaseClock


def test_the_first_reading_is_believed() -> None:
    clock = DatabaseClock()
    assert not clock.known
    with pytest.raises(LookupError, match="not been read yet"):
        clock.database_ms(0)
    clock.observe(ClockReading(1_000_005, 0, 10))
    assert clock.known
    assert clock.database_ms(100) == 1_000_100
    assert clock.monotonic_ms(1_000_100) == 100


def test_only_a_quicker_answer_changes_the_clock() -> None:
    clock = DatabaseClock()
    clock.observe(ClockReading(1_000_000.5, 0, 1))
    clock.observe(ClockReading(1_000_011, 10, 60))
    assert clock.database_ms(0) == 1_000_000
    clock = DatabaseClock()
    clock.observe(ClockReading(1_000_002, 0, 10))
    clock.observe(ClockReading(1_000_021, 20, 22))
    assert clock.database_ms(0) == 1_000_000


def test_a_slower_answer_counts_after_possible_drift() -> None:
    clock = DatabaseClock()
    clock.observe(ClockReading(1_000_000.5, 0, 1))
    hour_ms = 3_600_000
    clock.observe(ClockReading(1_000_001.5 + hour_ms, hour_ms, hour_ms + 4))
    assert clock.database_ms(0) == pytest.approx(999_999.5)


@pytest.mark.parametrize("step_ms", [-86_400_000, -100, 100, 86_400_000])
def test_a_clock_that_was_set_is_believed_at_once(step_ms: int) -> None:
    clock = DatabaseClock()
    clock.observe(ClockReading(1_000_000.5, 0, 1))
    clock.observe(ClockReading(1_000_025 + step_ms, 10, 40))
    assert clock.database_ms(0) == 1_000_000 + step_ms
