"""What the page shows first is asked for at once, in the order in which an operator needs it (X08)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect
from tests.plugin.airflow_server import AirflowServer
from tests.plugin.browsing import logged_in, open_view

from duewheel.store.broker import Broker

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.needs("chromium")]


def questions(page: Page) -> list[str]:
    """What the page asks from now on, without the criteria."""
    asked: list[str] = []

    def note(address: str) -> None:
        found = re.search(r"/duewheel/api/(?:brokers/duewheel_default/)?([\w-]+)", address)
        if found is not None:
            asked.append(found[1])

    page.on("request", lambda request: note(request.url))
    return asked


def test_x08_the_charts_are_asked_for_before_the_line_above_them(
    chromium: Browser, airflow: AirflowServer, shop: Broker
) -> None:
    with logged_in(chromium, airflow, "op") as page:
        asked = questions(page)
        open_view(page, airflow)
        expect(page.locator(".uplot").nth(1)).to_be_visible()
        expect(page.get_by_role("region", name="State of the broker")).to_be_visible()
        assert list(dict.fromkeys(asked))[:3] == ["brokers", "overview", "pulse"]


def test_x08_another_view_does_not_ask_for_the_overview(
    chromium: Browser, airflow: AirflowServer, shop: Broker
) -> None:
    with logged_in(chromium, airflow, "op") as page:
        asked = questions(page)
        open_view(page, airflow, "?view=schedules")
        expect(page.get_by_text("No schedules yet").or_(page.get_by_role("table"))).to_be_visible()
        assert "overview" not in asked
        assert "schedules" in asked
