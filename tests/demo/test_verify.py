"""The verdict can say no: one test for each thing that may be wrong."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from tests.acting import HOUR, MILLISECOND, rows, taken
from tests.clock import Clock

from duewheel.cli.demo.verify import Verdict, judge
from duewheel.dags.shop import GROUP, TOPIC, statement
from duewheel.store import Broker


@pytest.fixture
def shop(dsn: str) -> Iterator[Broker]:
    """A broker whose database has ten orders: five were paid and four of these recalled, five cancelled."""
    clock = Clock(datetime.now(UTC) - 2 * HOUR)
    with Broker(dsn, clock=clock, listen=False) as broker:
        broker.create_topic(TOPIC)
        consumer = broker.consumer(TOPIC, GROUP)
        rows(broker, statement("create_orders"))
        pay_by = clock() + HOUR
        for number in range(1, 11):
            rows(broker, "insert into orders (amount, placed_at, pay_by) values (1, %s, %s)", clock(), pay_by)
            broker.send(TOPIC, b"", key=f"{number}", deliver_at=pay_by)
        rows(broker, "update orders set paid_at = placed_at where number % 2 = 0")
        for number in (2, 4, 6, 8):
            broker.recall_key(TOPIC, f"{number}")
        clock.advance(HOUR + 3 * MILLISECOND)
        keys = [int(message.key or 0) for message in taken(consumer)]
        with broker.connection() as connection, connection.cursor() as cursor:
            cursor.execute(statement("cancel_orders"), {"due": keys})
        yield broker


def verdict(shop: Broker, *, orders: int = 10, failed_runs: int = 0) -> Verdict:
    return judge(shop.dsn, 0, orders, failed_runs, {"place": 1.0})


def test_a_right_run_has_no_problems(shop: Broker) -> None:
    right = verdict(shop)
    assert right.problems == []
    assert right.is_good
    counts = right.counts
    assert [counts[name] for name in ("placed", "paid", "recalled", "cancelled")] == [10, 5, 4, 5]
    assert counts["late_p50_ms"] == counts["late_p99_ms"] == counts["late_max_ms"] == pytest.approx(3, abs=1)


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ("update orders set paid_at = now() where number = 1", "1 paid orders were cancelled"),
        (
            "update orders set cancelled_at = pay_by - interval '1 second' where number in (1, 3)",
            "2 orders were cancelled before their time was over",
        ),
        (
            "update orders set cancelled_at = null where number in (1, 3, 5)",
            "3 unpaid orders were never cancelled",
        ),
        ("update orders set timeout_came_at = null where number = 1", "1 timeouts were never delivered"),
        (
            "update orders set timeout_came_at = now() where number = 2",
            "1 recalled timeouts were delivered nevertheless",
        ),
        (
            "update duewheel.tick set ticked_at = ticked_at - interval '1 hour'",
            "6 timeouts were released early",
        ),
    ],
)
def test_an_order_treated_wrong_is_a_problem(shop: Broker, wrong: str, problem: str) -> None:
    rows(shop, wrong)
    assert verdict(shop).problems == [problem]


@pytest.mark.parametrize(
    ("wrong", "problems"),
    [
        ("update orders set paid_at = null, cancelled_at = now()", {"no order was paid"}),
        (
            "update orders set paid_at = now(), cancelled_at = null",
            {"no order was cancelled"},
        ),
        (
            "insert into orders (amount, placed_at, pay_by, paid_at) select 1, t, t, t from now() t",
            {
                "11 orders were placed instead of 10",
                "1 orders were placed without a timeout",
                "1 timeouts were never delivered",
            },
        ),
    ],
)
def test_a_run_that_did_not_do_its_work_is_a_problem(shop: Broker, wrong: str, problems: set[str]) -> None:
    rows(shop, wrong)
    assert set(verdict(shop).problems) == problems


def test_failed_runs_are_a_problem(shop: Broker) -> None:
    assert verdict(shop, failed_runs=1).problems == ["1 runs of the cancelling DAG failed"]
