"""The verdict can say no: one test for each thing that may be wrong."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from duewheel.cli.demo.orders import OrderCounts, Timeout
from duewheel.cli.demo.run import Run
from duewheel.cli.demo.verify import Lateness, judge

RUN = Run(
    began_at="2026-01-05T09:30:00+00:00",
    first_order=0,
    orders=10,
    timeout_seconds=30,
    spread_seconds=0,
    seconds={"place": 1.0},
)
COUNTS = OrderCounts(placed=10, paid=5, cancelled=5, open=0, all_due=True)
RECALLED = Timeout(is_on_record=True, is_recalled=True, late=None, came=False)
CAME = Timeout(is_on_record=True, is_recalled=False, late=timedelta(milliseconds=3), came=True)
TIMEOUTS = [RECALLED] * 4 + [replace(CAME, late=timedelta(milliseconds=n)) for n in (6, 1, 2, 3, 4, 5)]


def with_first(timeout: Timeout) -> list[Timeout]:
    """The right timeouts, with this one in place of a right one."""
    return [timeout, *TIMEOUTS[1:]] if timeout.is_recalled else [*TIMEOUTS[:-1], timeout]


def test_a_right_run_has_no_problems() -> None:
    verdict = judge(RUN, COUNTS, TIMEOUTS, failed_runs=0)
    assert verdict.is_good
    assert verdict.problems == []
    assert (verdict.placed, verdict.paid, verdict.recalled, verdict.cancelled) == (10, 5, 4, 5)
    assert verdict.lateness == Lateness(p50_ms=3, p99_ms=6, max_ms=6)
    assert verdict.seconds == {"place": 1.0}


@pytest.mark.parametrize(
    ("counts", "problem"),
    [
        (replace(COUNTS, placed=9), "9 orders were placed instead of 10"),
        (replace(COUNTS, paid=0), "no order was paid"),
        (replace(COUNTS, cancelled=0), "no order was cancelled"),
        (replace(COUNTS, wrongly_cancelled=1), "1 paid orders were cancelled"),
        (replace(COUNTS, cancelled_early=2), "2 orders were cancelled before their time was over"),
        (replace(COUNTS, open=3), "3 unpaid orders were never cancelled"),
    ],
)
def test_orders_treated_wrong_are_told(counts: OrderCounts, problem: str) -> None:
    assert judge(RUN, counts, TIMEOUTS, failed_runs=0).problems == [problem]


@pytest.mark.parametrize(
    ("timeout", "problem"),
    [
        (replace(CAME, is_on_record=False), "1 orders were placed without a timeout"),
        (replace(CAME, came=False), "1 timeouts never came"),
        (replace(CAME, late=timedelta(milliseconds=-1)), "1 timeouts were released early"),
        (replace(RECALLED, came=True), "1 recalled timeouts came all the same"),
    ],
)
def test_timeouts_treated_wrong_are_told(timeout: Timeout, problem: str) -> None:
    verdict = judge(RUN, COUNTS, with_first(timeout), failed_runs=0)
    assert verdict.problems == [problem]
    assert verdict.as_json()["is_good"] is False


def test_failed_runs_are_told() -> None:
    assert judge(RUN, COUNTS, TIMEOUTS, failed_runs=1).problems == ["1 runs of the cancelling DAG failed"]


def test_lateness_leaves_recalled_timeouts_out() -> None:
    late_recalled = replace(RECALLED, late=timedelta(hours=1))
    assert judge(RUN, COUNTS, with_first(late_recalled), failed_runs=0).lateness == Lateness(3, 6, 6)
