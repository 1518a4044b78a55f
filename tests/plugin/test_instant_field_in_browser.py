"""A dialog that moves messages does what its fields show (X08)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect
from tests.plugin.airflow_server import AirflowServer
from tests.plugin.browsing import choose_all, close, logged_in, open_view

from duewheel.store.broker import Broker

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.needs("chromium")]

HOUR = timedelta(hours=1)


@pytest.fixture
def page(
    chromium: Browser, airflow: AirflowServer, shop: Broker, request: pytest.FixtureRequest
) -> Iterator[Page]:
    """The list of a topic with one message, which is chosen."""
    topic = topic_of(request)
    shop.create_topic(topic)
    shop.send(topic, b"", delay=12 * HOUR)
    with logged_in(chromium, airflow, "op") as page:
        open_view(page, airflow, f"?view=messages&topic={topic}")
        choose_all(page)
        yield page


def topic_of(request: pytest.FixtureRequest) -> str:
    """A topic of the test's own."""
    return request.node.name.removeprefix("test_x08_")[:60]


def opened(page: Page) -> Locator:
    """The dialog that moves what is chosen."""
    page.get_by_role("group", name="Chosen").get_by_role("button", name="Reschedule").click()
    return page.get_by_role("alertdialog")


def moved_by(page: Page, shop: Broker, topic: str) -> int:
    """Carry the move out: by how many hours?"""
    dialog = page.get_by_role("alertdialog")
    began_at = datetime.now(UTC)
    dialog.get_by_role("button", name="Reschedule").click()
    expect(dialog.get_by_role("status").last).to_contain_text("1 rescheduled")
    close(dialog)
    (found,) = shop.list_messages(topic).messages
    return round((found.deliver_at - began_at) / HOUR)


def test_x08_a_dialog_that_was_closed_has_forgotten_the_delay(
    page: Page, shop: Broker, request: pytest.FixtureRequest
) -> None:
    dialog = opened(page)
    dialog.locator("select[name=delay]").select_option("21600")
    dialog.get_by_role("button", name="Cancel").click()
    expect(dialog).to_have_count(0)
    dialog = opened(page)
    expect(dialog.locator("select[name=delay]")).to_have_value("3600")
    assert moved_by(page, shop, topic_of(request)) == 1


def test_x08_an_instant_that_is_cleared_leaves_the_delay_that_is_shown(
    page: Page, shop: Broker, request: pytest.FixtureRequest
) -> None:
    dialog = opened(page)
    dialog.locator("select[name=delay]").select_option("21600")
    dialog.locator("input[name=deliver_at]").fill("2030-11-29T00:00")
    expect(dialog.locator("select[name=delay]")).to_be_disabled()
    dialog.locator("input[name=deliver_at]").fill("")
    expect(dialog.locator("select[name=delay]")).to_have_value("21600")
    assert moved_by(page, shop, topic_of(request)) == 6


def test_x08_an_instant_that_is_past_is_told(page: Page) -> None:
    dialog = opened(page)
    told = dialog.get_by_text("This instant is past: they are delivered at once.")
    dialog.locator("input[name=deliver_at]").fill("2020-01-01T00:00")
    expect(told).to_be_visible()
    dialog.locator("input[name=deliver_at]").fill("2030-01-01T00:00")
    expect(told).to_have_count(0)
