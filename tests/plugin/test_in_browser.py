"""The page in a real browser against a real Airflow: what an operator of a shop sees and does (X08)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect
from tests.plugin.airflow_server import AirflowServer

from duewheel.plugin.bundle import _BUILT
from duewheel.store import RetryPolicy
from duewheel.store.broker import Broker

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.airflow, pytest.mark.slow]

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
#: Where the pictures in the documentation come from.
PICTURES = Path(__file__).parents[2] / "docs" / "how-to" / "page"
WIDE = {"width": 1400, "height": 900}
NARROW = {"width": 400, "height": 900}


@pytest.fixture(scope="module", autouse=True)
def built() -> None:
    """The tests are of the page that is built from the sources, not of what stands in for it."""
    if not _BUILT.exists():
        pytest.fail("the page is not built: run `make page`")


@pytest.fixture(scope="module")
def shop_at_work(shop: Broker) -> Broker:
    """A shop in the midst of its day."""
    shop.create_topic("orders.timeout", max_delay=timedelta(days=30))
    shop.create_topic("vouchers.expire", max_delay=timedelta(days=30))
    shop.send_many(
        "orders.timeout",
        [
            {
                "body": {"order": number, "amount": "19.90"},
                "delay": 2 * MINUTE + (number * 13 % 3_400) * timedelta(seconds=1),
                "key": f"order-{number}",
                "tag": "paid" if number % 3 else "unpaid",
            }
            for number in range(1, 401)
        ],
    )
    shop.send_many(
        "vouchers.expire",
        [{"body": b"<script>alert(1)</script>", "delay": 30 * MINUTE, "key": f"v-{n}"} for n in range(250)],
    )
    shop.create_topic("orders.placed", message_type="NORMAL")
    shop.send_many("orders.placed", [{"body": {"order": n}, "key": f"order-{n}"} for n in range(40)])
    consumer = shop.consumer("orders.placed", "ship", name="worker-1", retry=RetryPolicy(0, (MINUTE,)))
    batch = consumer.receive(max_messages=32)
    consumer.ack(batch[:20])
    consumer.nack(batch[20:25])
    other = shop.consumer("orders.placed", "bill", name="worker-2", retry=RetryPolicy(3, (MINUTE,)))
    taken = other.receive(max_messages=10)
    other.nack(taken[:4])
    shop.add_schedule("clean-up", "orders.timeout", b"", cron="0 5 * * *", timezone="Europe/Berlin")
    return shop


@contextmanager
def logged_in(
    chromium: Browser, airflow: AirflowServer, role: str, *, dark: bool = False, size: Any = None
) -> Iterator[Page]:
    """A page of the browser after a real login; what goes wrong in it fails the test."""
    context = chromium.new_context(
        viewport=size or WIDE,
        color_scheme="dark" if dark else "light",
        locale="en-GB",
        timezone_id="UTC",
    )
    context.add_init_script(f"localStorage.setItem('theme', '{'dark' if dark else 'light'}')")
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    try:
        page.goto(f"{airflow.url}/auth/login/?next={airflow.url}/plugin/duewheel")
        page.locator("input[name=username]").fill(role)
        page.locator("input[name=password]").fill(airflow.password)
        page.locator("button[type=submit]").click()
        page.wait_for_url(re.compile(r"/plugin/duewheel|/$"))
        yield page
        assert errors == []
    finally:
        context.close()


def open_view(page: Page, airflow: AirflowServer, query: str = "") -> None:
    """Load the page with a query string, and wait until it shows itself."""
    page.goto(f"{airflow.url}/plugin/duewheel{query}")
    expect(page.get_by_role("heading", name="Delay messages")).to_be_visible(timeout=30_000)


def test_x08_an_operator_finds_an_order_by_its_key_and_recalls_it(
    chromium: Browser, airflow: AirflowServer, shop_at_work: Broker
) -> None:
    with logged_in(chromium, airflow, "op") as page:
        page.goto(airflow.url)
        page.get_by_role("link", name="Delay messages").click(timeout=30_000)
        expect(page.get_by_text(re.compile("Due: .* next hour by minute"))).to_be_visible()
        page.get_by_role("button", name="Messages", exact=True).click()
        page.locator("input[name=topic]").fill("orders.timeout")
        page.keyboard.press("Enter")
        page.locator("input[name=key]").fill("order-77")
        page.keyboard.press("Enter")
        row = page.get_by_role("row", name=re.compile("order-77 "))
        expect(row).to_be_visible()
        row.get_by_role("link").last.click()
        expect(page.get_by_role("heading", name="Message order-77")).to_be_visible()
        expect(page.get_by_text('"amount": "19.90"')).to_be_visible()
        page.get_by_role("button", name="Recall").click()
        page.get_by_role("alertdialog").get_by_role("button", name="Recall").click()
        expect(page.get_by_text("1 recalled: never delivered")).to_be_visible()
        page.get_by_role("button", name="Close").first.click()
        expect(page.get_by_text("recalled", exact=True).first).to_be_visible()
        page.go_back()
        expect(page.get_by_text("Nothing matches.")).to_be_visible()
    (found,) = shop_at_work.find_key("orders.timeout", "order-77")
    assert found.recalled
