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
    NARROW,
    WRITES_PICTURES,
    findings,
    logged_in,
    open_view,
    take_picture,
)

from duewheel.store.broker import Broker

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

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


def step_of(page: Page, step: int) -> Locator:
    """What takes the pointer at a step of the axis."""
    return page.locator(f'[data-step="{step}"]')


def drag(page: Page, first: int, last: int) -> None:
    """Press on one step of the axis, and let go on another."""
    step_of(page, first).hover()
    page.mouse.down()
    step_of(page, last).hover()
    page.mouse.up()


def drag_by_touch(page: Page, first: int, last: int) -> None:
    """Touch one step of the axis, and lift the finger from another."""
    step_of(page, first).scroll_into_view_if_needed()
    boxes = [step_of(page, step).bounding_box() for step in (first, (first + last) // 2, last)]
    places = [{"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2} for box in boxes if box]
    session = page.context.new_cdp_session(page)
    session.send("Emulation.setTouchEmulationEnabled", {"enabled": True})
    for kind, place in zip(("touchStart", "touchMove", "touchMove"), places, strict=True):
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": [place]})
    session.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})


def test_x08_a_bar_leads_to_its_messages_by_mouse_and_keyboard(
    chromium: Browser, airflow: AirflowServer, sale: Broker
) -> None:
    with logged_in(chromium, airflow, "viewer") as page:
        open_view(page, airflow, CHART)
        expect(page.get_by_role("heading", name="Due: 5,")).to_be_visible()
        step_of(page, 30).hover()
        tooltip = page.locator("[data-part=tooltip]")
        expect(tooltip).to_contain_text("2030-11-29 00:30:00")
        expect(tooltip).to_contain_text("sale: 2")
        step_of(page, 30).click()
        expect(page.get_by_text("2 of 2", exact=True)).to_be_visible()
        expect(page.locator("input[name=from]")).to_have_value("2030-11-29T00:30")
        expect(page.locator("input[name=until]")).to_have_value("2030-11-29T00:31")
        page.go_back()
        opener = page.get_by_role("button", name="As a list")
        opener.press("Enter")
        steps = page.get_by_role("region", name="Messages by time", exact=True)
        expect(steps.get_by_role("row")).to_have_count(1 + 2)
        assert findings(page, "[data-page=duewheel]") == []
        steps.get_by_role("link", name="2030-11-29 00:00:00").press("Enter")
        expect(page.get_by_text("3 of 3", exact=True)).to_be_visible()


def test_x08_a_drag_zooms_and_a_button_leads_back_to_now(
    chromium: Browser, airflow: AirflowServer, sale: Broker
) -> None:
    with logged_in(chromium, airflow, "viewer") as page:
        open_view(page, airflow, CHART)
        expect(page.get_by_role("heading", name="Due: 5,")).to_be_visible()
        drag(page, 20, 40)
        # The later ones, by finer steps. A drag is no click.
        expect(
            page.get_by_role("heading", name="Due: 2, 2030-11-29 00:20:00 to 2030-11-29 00:41:00")
        ).to_be_visible()
        step_of(page, 41).hover()
        expect(page.locator("[data-part=tooltip]")).to_contain_text("00:30:15 to 00:30:30")
        sale.send("sale", b"", deliver_at=BLACK_FRIDAY + 25 * MINUTE)
        expect(page.get_by_role("heading", name="Due: 3,")).to_be_visible()
        page.get_by_role("button", name="Back to now").click()
        expect(page.get_by_role("heading", name="1 h before and after now")).to_be_visible()


def test_x08_a_finger_zooms_and_the_spans_stay_in_a_line(
    chromium: Browser, airflow: AirflowServer, sale: Broker
) -> None:
    with logged_in(chromium, airflow, "viewer", size=NARROW | {"width": 360}) as page:
        open_view(page, airflow, CHART)
        expect(page.get_by_role("heading", name="Due: ")).to_be_visible()
        spans = page.get_by_role("button", name=re.compile(r"^\d+ (min|h|d)$"))
        expect(spans).to_have_count(5)
        tops = spans.evaluate_all("all => all.map(one => one.getBoundingClientRect().top)")
        assert len(set(tops)) == 1
        drag_by_touch(page, 20, 40)
        expect(page.get_by_role("heading", name="2030-11-29 00:20:00 to 2030-11-29 00:41:00")).to_be_visible()


@pytest.mark.parametrize("dark", [False, True] if WRITES_PICTURES else [True])
def test_x08_the_plan_of_a_day_is_seen_by_the_hour(
    chromium: Browser, airflow: AirflowServer, plan: None, tmp_path: Path, dark: bool
) -> None:
    with logged_in(chromium, airflow, "viewer", dark=dark) as page:
        open_view(page, airflow, f"?topic=daily-reminders&span=3d&from={FIRST:%F}T00:00:00Z")
        # A busy machine may have no time to count all at first, and then counts again after 90 s at most.
        whole = f"Due: {'' if WRITES_PICTURES else f'{REMINDERS:,}, '}"
        heading = page.get_by_role("heading", name=whole).filter(has_text=f"{FIRST:%F} 00:00:00 to")
        expect(heading).to_be_visible(timeout=120_000)
        assert findings(page, "[data-page=duewheel]") == []
        take_picture(page, f"plan-wide-{'dark' if dark else 'light'}", tmp_path)
        page.get_by_role("button", name="As a list").click()
        steps = page.get_by_role("region", name="Messages by time", exact=True)
        expect(steps.get_by_role("row")).to_have_count(1 + HOURS)
        if not WRITES_PICTURES:
            # A million are estimated.
            expect(steps.get_by_role("row", name=f"{FIRST:%F %T}")).to_contain_text(f"{REMINDERS // HOURS}")


def test_x08_messages_that_are_overdue_are_counted_in_their_tile(
    chromium: Browser, airflow: AirflowServer, night_dsn: str
) -> None:
    with Broker(night_dsn, clock=lambda: datetime.now(UTC) - 10 * SECOND) as broker:
        broker.create_topic("overdue-night")
        broker.send_many("overdue-night", [{"body": b"", "delay": timedelta(0)}] * 7)
    with logged_in(chromium, airflow, "viewer") as page:
        open_view(page, airflow, "?broker=night")
        expect(page.get_by_role("region", name="Verdict")).to_contain_text("No wheel running")
        expect(page.get_by_role("group", name="Overdue")).to_contain_text(
            re.compile(r"7overdue-night since \d+ s")
        )
