"""The charts of the overview lead to what they show, and the latest topics stand first (X08)."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect
from tests.conftest import execute
from tests.plugin.airflow_server import AirflowServer
from tests.plugin.browsing import (
    WRITES_PICTURES,
    findings,
    logged_in,
    open_view,
    take_picture,
)

from duewheel.store.broker import Broker

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.long, pytest.mark.needs("chromium")]

BLACK_FRIDAY = datetime(2030, 11, 29, tzinfo=UTC)
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
CHART = "?topic=sale&from=2030-11-29T00:00:00Z"
#: The hours of a day for which the example plans reminders.
FIRST = datetime(2030, 12, 6, 8, tzinfo=UTC)
HOURS = 12
#: As many as the example plans, where the picture for the documentation is made.
REMINDERS = 1_000_000 if WRITES_PICTURES else 2_400


@pytest.fixture(scope="module")
def sale(shop: Broker) -> Broker:
    """A broker with messages that are due in years: three at an instant, and two half an hour later."""
    shop.create_topic("sale", max_delay=timedelta(days=3_650))
    for minute, number in ((0, 3), (30, 2)):
        due_at = BLACK_FRIDAY + minute * MINUTE + timedelta(seconds=30)
        shop.send_many("sale", [{"body": b"", "deliver_at": due_at, "key": f"at-{minute}"}] * number)
    return shop


@pytest.fixture(scope="module")
def plan(shop: Broker) -> None:
    """A planned day, in the form of the messages of ``plan_reminders``; that this writes them is tested with
    the examples."""
    shop.create_topic("daily-reminders", max_delay=timedelta(days=3_650))
    apart = timedelta(hours=HOURS) / REMINDERS
    for first in range(0, REMINDERS, 50_000):
        shop.send_many(
            "daily-reminders",
            [
                {
                    "body": {"customer": number, "day": f"{FIRST:%F}"},
                    "key": f"{number}",
                    "deliver_at": FIRST + number * apart,
                }
                for number in range(first, min(first + 50_000, REMINDERS))
            ],
        )
    if WRITES_PICTURES:
        # As autovacuum does within minutes: the numbers of a million are estimated from what it has seen.
        execute(shop.dsn, "analyze")


def place_of(page: Page, minute: int) -> tuple[float, float]:
    """Where the bar of a minute stands in the chart."""
    box = page.locator(".u-over").first.bounding_box()
    assert box is not None
    return box["x"] + box["width"] * minute / 59, box["y"] + box["height"] - 5


def test_x08_a_bar_leads_to_its_messages_by_mouse_and_by_keyboard(
    chromium: Browser, airflow: AirflowServer, sale: Broker
) -> None:
    with logged_in(chromium, airflow, "viewer") as page:
        open_view(page, airflow, CHART)
        expect(page.get_by_role("heading", name="Due: 5 in the hour")).to_be_visible()
        page.mouse.move(*place_of(page, 30))
        tooltip = page.locator("[data-part=tooltip]")
        expect(tooltip).to_contain_text("2030-11-29 00:30:00")
        expect(tooltip).to_contain_text("sale: 2")
        page.mouse.click(*place_of(page, 30))
        expect(page.get_by_text("2 of 2", exact=True)).to_be_visible()
        expect(page.locator("input[name=from]")).to_have_value("2030-11-29T00:30")
        expect(page.locator("input[name=until]")).to_have_value("2030-11-29T00:31")
        page.go_back()
        opener = page.get_by_role("button", name="As a list")
        opener.press("Enter")
        steps = page.get_by_role("region", name="Due messages", exact=True)
        expect(steps.get_by_role("row")).to_have_count(1 + 2)
        assert findings(page, "[data-page=duewheel]") == []
        steps.get_by_role("link", name="2030-11-29 00:00:00").press("Enter")
        expect(page.get_by_text("3 of 3", exact=True)).to_be_visible()


def test_x08_a_part_of_a_chart_stays_and_leads_back_to_the_whole(
    chromium: Browser, airflow: AirflowServer, sale: Broker
) -> None:
    with logged_in(chromium, airflow, "viewer") as page:
        open_view(page, airflow, CHART)
        expect(page.get_by_role("heading", name="Due: 5 in the hour")).to_be_visible()
        whole = page.get_by_role("button", name="Show the whole chart")
        expect(whole).to_have_count(0)
        page.mouse.move(*place_of(page, 10))
        page.mouse.down()
        page.mouse.move(*place_of(page, 40), steps=5)
        page.mouse.up()
        # A drag is no click.
        expect(page.get_by_role("heading", name="Due: 5 in the hour")).to_be_visible()
        expect(whole).to_be_visible()
        sale.send("sale", b"", deliver_at=BLACK_FRIDAY + 20 * MINUTE)
        expect(page.get_by_role("heading", name="Due: 6 in the hour")).to_be_visible()
        expect(whole).to_be_visible()
        whole.click()
        expect(whole).to_have_count(0)
        # Of another time, nothing is in the part.
        sale.send("sale", b"", deliver_at=BLACK_FRIDAY + 390 * MINUTE)
        page.mouse.move(*place_of(page, 10))
        page.mouse.down()
        page.mouse.move(*place_of(page, 40), steps=5)
        page.mouse.up()
        expect(whole).to_be_visible()
        page.locator("input[name=from]").fill("2030-11-29T06:00")
        page.locator("input[name=from]").press("Enter")
        expect(page.get_by_role("heading", name="Due: 1 in the hour")).to_be_visible()
        expect(whole).to_have_count(0)


@pytest.mark.parametrize("dark", [False, True] if WRITES_PICTURES else [True])
def test_x08_the_plan_of_a_day_is_seen_by_the_hour(
    chromium: Browser, airflow: AirflowServer, plan: None, tmp_path: Path, dark: bool
) -> None:
    with logged_in(chromium, airflow, "viewer", dark=dark) as page:
        open_view(page, airflow, f"?topic=daily-reminders&span=days&from={FIRST:%F}T00:00:00Z")
        # A busy machine may have no time to count all at first, and then counts again after 90 s at most.
        whole = f"Due: {'' if WRITES_PICTURES else f'{REMINDERS:,} '}"
        heading = page.get_by_role("heading", name=whole).filter(
            has_text=f"in the 3 days by hour, from {FIRST:%F} 00:00:00 on"
        )
        expect(heading).to_be_visible(timeout=120_000)
        assert findings(page, "[data-page=duewheel]") == []
        take_picture(page, f"plan-wide-{'dark' if dark else 'light'}", tmp_path)
        page.get_by_role("button", name="As a list").click()
        steps = page.get_by_role("region", name="Due messages", exact=True)
        expect(steps.get_by_role("row")).to_have_count(1 + HOURS)
        if not WRITES_PICTURES:
            # A million are estimated.
            expect(steps.get_by_role("row", name=f"{FIRST:%F %T}")).to_contain_text(f"{REMINDERS // HOURS}")


def test_x08_messages_that_are_overdue_are_counted_in_the_warning(
    chromium: Browser, airflow: AirflowServer, night_dsn: str
) -> None:
    with Broker(night_dsn, clock=lambda: datetime.now(UTC) - 10 * SECOND) as broker:
        broker.create_topic("overdue-night")
        broker.send_many("overdue-night", [{"body": b"", "delay": timedelta(0)}] * 7)
    with logged_in(chromium, airflow, "viewer") as page:
        open_view(page, airflow, "?broker=night")
        told = page.get_by_role("status").filter(has_text="No wheel turns, and messages are due.")
        expect(told).to_contain_text(re.compile(r"overdue-night since \d+ s \(7 due\)"))
