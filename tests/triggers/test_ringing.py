"""When the doorbell of one group rings, played through without a broker."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from duewheel.store import Doorbell
from duewheel.triggers.ringing import MOST_ON_THE_WAY, Ringing

NOON = datetime(2026, 1, 5, 12, 0, tzinfo=UTC)


class Door:
    """A bell with its clock: seconds since noon."""

    def __init__(self, **arguments: float) -> None:
        self.bell = Ringing(ring_again_seconds=arguments.pop("ring_again_seconds", 60), **arguments)  # type: ignore[arg-type]

    def rings(
        self, second: float, ready: int, *, oldest: float = 0, holders: str = "", more: bool = False
    ) -> bool:
        """Look at ``second``, when ``ready`` messages are ready, the oldest since second ``oldest``, each
        letter of ``holders`` has others, and there are perhaps more than could be looked at."""
        doorbell = Doorbell(
            topic="t",
            group="g",
            ready=ready,
            oldest_deliver_at=NOON + timedelta(seconds=oldest) if ready else None,
            inflight=bool(holders),
            holders=tuple(holders),
            next_at=None,
            more=more,
        )
        return self.bell.rings(doorbell, polled_at=NOON + timedelta(seconds=second), at_seconds=1000 + second)


def test_it_rings_again_without_an_answer() -> None:
    door = Door(ring_again_seconds=10)
    assert door.rings(0, 5)
    assert not door.rings(9.9, 5)
    assert door.rings(10, 5)
    assert not door.rings(19.9, 5)
    assert door.rings(20, 5)


def test_remaining_messages_ring_for_a_parallel_run() -> None:
    door = Door()
    assert door.rings(0, 9)
    assert door.rings(1, 6, holders="a")
    assert door.rings(2, 3, holders="ab")
    assert not door.rings(3, 0, holders="abc")


def test_a_starting_run_rings_for_as_many_as_the_rest_needs() -> None:
    door = Door()
    assert door.rings(0, 40)
    assert not any(door.rings(second, 40) for second in range(1, 5))
    # The first takes 10, so three more are wanted.
    assert door.rings(5, 30, holders="a")
    assert not door.rings(5.75, 30, holders="a")
    assert door.rings(6, 30, holders="a")
    assert door.rings(7, 30, holders="a")
    assert not any(door.rings(7 + second, 30, holders="a") for second in (0.5, 1, 5, 9.9))


def test_each_started_run_is_counted_even_if_its_lease_is_unseen() -> None:
    door = Door()
    assert door.rings(0, 100)
    assert [door.rings(5 + second, 90) for second in (0, 1, 2)] == [True] * 3
    # Two of the three came.
    assert not door.rings(7.5, 70)
    assert door.rings(8, 70)


def test_rings_beyond_airflows_runs_are_not_on_their_way() -> None:
    door = Door()
    assert door.rings(0, 10_000)
    assert door.rings(5, 9_990, holders="a")
    rings = [second for second in range(1, 60) if door.rings(5 + second, 9_990, holders="a")]
    one_a_second = list(range(1, MOST_ON_THE_WAY))
    # One each, after 10 and after 20 more seconds: twice and four times as long as the first run took.
    assert rings == [*one_a_second, MOST_ON_THE_WAY + 9, MOST_ON_THE_WAY + 29]


def test_a_ring_that_airflow_merged_is_repeated_soon() -> None:
    door = Door()
    assert door.rings(0, 30)
    assert [door.rings(2 + second, 20) for second in (0, 1)] == [True] * 2
    assert not door.rings(4, 10)
    # Another is said to be on its way, and is not.
    assert not door.rings(7.9, 10)
    assert door.rings(8, 10)


def test_a_merged_ring_is_repeated_while_runs_are_at_work() -> None:
    door = Door()
    assert door.rings(0, 3)
    assert [door.rings(5 + second, 2, holders="a") for second in (0, 1)] == [True] * 2
    # Two rings made one run, and the work of both goes on.
    assert not door.rings(7, 1, holders="ab")
    assert not door.rings(16.9, 1, holders="ab")
    assert door.rings(17, 1, holders="ab")
    assert not door.rings(18, 0, holders="abc")


def test_a_run_that_takes_all_rings_for_no_other() -> None:
    door = Door()
    assert door.rings(0, 300)
    assert not door.rings(5, 0, holders="a")
    assert door.rings(9, 300, oldest=9)
    assert not any(door.rings(9 + second, 300, oldest=9) for second in range(1, 50))


def test_what_becomes_due_during_a_long_run_rings() -> None:
    door = Door()
    assert door.rings(0, 5)
    assert not door.rings(1, 0, holders="a")
    assert door.rings(2, 1, oldest=2, holders="a")


def test_it_rings_more_rarely_while_its_run_waits() -> None:
    door = Door(ring_again_seconds=10)
    assert door.rings(0, 1, holders="a")
    rings = [second for second in range(1, 1000) if door.rings(second, 1 + second, holders="a")]
    assert rings == [10, 30, 70, 150, 310, 630]
    assert door.rings(1270, 1000)


def test_a_run_that_takes_many_batches_is_one_run() -> None:
    door = Door(ring_again_seconds=10)
    assert door.rings(0, 9000, holders="a")
    rings = [
        second for second in range(1, 160) if door.rings(second, 9000 - second, oldest=second, holders="a")
    ]
    assert rings == [10, 30, 70, 150]


def test_what_was_left_over_rings_when_the_work_has_ended() -> None:
    door = Door(min_messages=3)
    assert door.rings(0, 5)
    assert not door.rings(1, 2, holders="a")
    assert door.rings(2, 3)


def test_new_messages_ring_after_the_group_was_empty() -> None:
    door = Door()
    assert door.rings(0, 5)
    assert not door.rings(1, 0)
    assert door.rings(2, 1, oldest=2)


def test_a_short_run_is_noticed_though_more_was_sent_meanwhile() -> None:
    door = Door()
    assert door.rings(0, 5, oldest=0)
    assert door.rings(2, 9, oldest=1)


def test_more_messages_and_then_fewer_are_a_run() -> None:
    door = Door()
    assert door.rings(0, 5)
    assert not door.rings(1, 50)
    assert door.rings(2, 40)


def test_an_older_retry_is_not_a_new_run() -> None:
    door = Door()
    assert door.rings(10, 5, oldest=5)
    assert not door.rings(11, 6, oldest=3)


def test_too_few_messages_do_not_ring() -> None:
    door = Door(min_messages=10)
    assert not door.rings(0, 9)
    assert door.rings(1, 10)


def test_too_few_messages_ring_if_more_may_follow() -> None:
    door = Door(min_messages=10)
    assert not door.rings(0, 0, more=True)
    assert door.rings(1, 9, more=True)


def test_too_few_messages_ring_after_their_longest_wait() -> None:
    door = Door(min_messages=10, max_wait_seconds=30)
    assert not door.rings(0, 1, oldest=0)
    assert not door.rings(29.9, 2, oldest=0)
    assert door.rings(30, 2, oldest=0)


def test_the_longest_wait_counts_by_the_database() -> None:
    assert Door(min_messages=10, max_wait_seconds=30).rings(45, 1, oldest=15)


@pytest.mark.parametrize("holders", ["", "a"])
def test_a_bell_without_memory_rings_only_for_ready_messages(holders: str) -> None:
    assert not Door().rings(0, 0, holders=holders)
    assert Door().rings(0, 5, holders=holders)


def test_it_rings_for_messages_after_those_of_other_groups() -> None:
    """Only a run moves past them."""
    unwanted = Doorbell("t", "g", 1, None, None, inflight=False, more=True)
    bell = Ringing(ring_again_seconds=60, min_messages=10, max_wait_seconds=30)
    assert bell.rings(unwanted, polled_at=NOON, at_seconds=1000)
