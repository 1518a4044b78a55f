"""Lists that stand still say when they were read, and on a phone their rows come before the filter (X08)."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect
from tests.plugin.airflow_server import AirflowServer
from tests.plugin.browsing import NARROW, close, findings, logged_in, open_view
from tests.streaming import read_as_a_stream

from duewheel.store.broker import Broker

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Route

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.needs("chromium")]


@pytest.fixture(scope="module")
def lists(shop: Broker) -> Broker:
    """A broker with something in every list."""
    shop.create_topic("listed")
    shop.consumer("listed", "listed")
    shop.send("listed", b"", key="listed-1", delay=timedelta(hours=1))
    return shop


@pytest.mark.parametrize("view", ["messages&topic=listed", "topics", "groups", "dead&group=listed"])
def test_x08_a_list_that_stands_still_says_when_it_was_read(
    chromium: Browser, airflow: AirflowServer, lists: Broker, view: str
) -> None:
    with logged_in(chromium, airflow, "viewer") as page:
        open_view(page, airflow, f"?view={view}")
        read_at = page.get_by_text(re.compile(r"^As of \d{4}-\d\d-\d\d \d\d:\d\d:\d\d$"))
        expect(read_at).to_have_count(1)
        before = read_at.get_attribute("title")
        page.get_by_role("button", name="Refresh").click()
        expect(read_at).not_to_have_attribute("title", str(before))
        expect(page.get_by_role("button", name="Refresh")).to_be_focused()


def test_x08_a_refreshed_list_and_its_count_have_what_came_meanwhile(
    chromium: Browser, airflow: AirflowServer, lists: Broker
) -> None:
    lists.create_topic("filling")
    lists.send("filling", b"", delay=timedelta(hours=1))
    with logged_in(chromium, airflow, "viewer") as page:
        open_view(page, airflow, "?view=messages&topic=filling")
        expect(page.get_by_text("1 of 1", exact=True)).to_be_visible()
        lists.send("filling", b"", delay=timedelta(hours=1))
        page.get_by_role("button", name="Refresh").click()
        expect(page.get_by_text("2 of 2", exact=True)).to_be_visible()


def test_x08_a_list_is_pale_and_cannot_be_acted_on_while_an_act_makes_it_be_read_anew(
    chromium: Browser, airflow: AirflowServer, lists: Broker
) -> None:
    held: list[Route] = []
    with logged_in(chromium, airflow, "op") as page:
        open_view(page, airflow, "?view=groups")
        row = page.get_by_role("row", name=re.compile("^listed "))
        dialog = page.get_by_role("alertdialog")
        row.get_by_role("button", name="Pause").click()
        dialog.get_by_role("button", name="Pause").click()
        expect(dialog.get_by_role("button", name="Pause")).to_have_count(0)
        page.route(re.compile(r"/groups\?"), lambda route: held.append(route))
        close(dialog)
        # The list alone, and not the page around it.
        expect(page.locator("[aria-busy=true]")).to_have_count(1)
        expect(page.locator("[aria-busy=true]").get_by_role("button", name="Pause").first).to_be_disabled()
        expect(page.get_by_role("heading", name="Groups", exact=True)).to_be_focused()
        for route in held:
            route.continue_()
        expect(row.get_by_role("button", name="Resume")).to_be_enabled()
        expect(page.locator("[aria-busy=true]")).to_have_count(0)
    lists.resume_group("listed", "listed")


@pytest.mark.parametrize("view", ["messages&topic=listed", "dead&group=listed", "leases", "retries"])
def test_x08_on_a_phone_the_filter_opens_on_demand(
    chromium: Browser, airflow: AirflowServer, lists: Broker, view: str
) -> None:
    with logged_in(chromium, airflow, "viewer", size=NARROW) as page:
        open_view(page, airflow, f"?view={view}")
        opener = page.get_by_role("button", name="Filters")
        expect(opener).to_have_attribute("aria-expanded", "false")
        expect(opener).to_have_text("Filters (1 set)" if "=" in view else "Filters")
        topic = page.locator("input[name=topic]")
        expect(topic).to_be_hidden()
        opener.press("Enter")
        expect(topic).to_be_visible()
        assert findings(page, "[data-page=duewheel]") == []
        opener.press("Enter")
        expect(topic).to_be_hidden()


def test_x08_on_a_desk_the_filter_is_always_there(
    chromium: Browser, airflow: AirflowServer, lists: Broker
) -> None:
    with logged_in(chromium, airflow, "viewer") as page:
        open_view(page, airflow, "?view=messages&topic=listed")
        expect(page.locator("input[name=topic]")).to_be_visible()
        expect(page.get_by_role("button", name="Filters")).to_be_hidden()


def test_x08_a_list_that_is_shown_whole_is_sorted_by_the_head_of_a_column(
    chromium: Browser, airflow: AirflowServer, lists: Broker
) -> None:
    # In the order of their names, and in another one by what the first and the last of them send.
    for name, topic in (("sorted-a", "listed"), ("sorted-b", "sorting-2"), ("sorted-c", "sorting-1")):
        if topic != "listed":
            lists.create_topic(topic)
        lists.add_schedule(name, topic, b"", every=timedelta(days=1))
    with logged_in(chromium, airflow, "viewer") as page:
        open_view(page, airflow, "?view=schedules")
        schedules = page.get_by_role("region", name="Schedules")
        names = schedules.get_by_role("cell", name=re.compile("^sorted-"))
        head = schedules.get_by_role("columnheader", name="Topic")
        expect(names).to_have_text(["sorted-a", "sorted-b", "sorted-c"])
        head.get_by_role("button").click()
        expect(head).to_have_attribute("aria-sort", "ascending")
        expect(names).to_have_text(["sorted-a", "sorted-c", "sorted-b"])
        head.get_by_role("button").press("Enter")
        expect(head).to_have_attribute("aria-sort", "descending")
        expect(names).to_have_text(["sorted-b", "sorted-c", "sorted-a"])
        # A list with pages is not sorted by one of them.
        open_view(page, airflow, "?view=topics")
        expect(page.get_by_role("columnheader", name="Topic").get_by_role("button")).to_have_count(0)
        expect(page.get_by_role("columnheader", name="Topic")).to_be_visible()


def test_x08_the_group_of_a_stream_shows_how_much_it_has_not_read(
    chromium: Browser, airflow: AirflowServer, lists: Broker
) -> None:
    lists.create_topic("streamed", message_type="NORMAL")
    group_id = lists.consumer("streamed", "stream-of-spark").group_id
    lists.send_many("streamed", [{"body": b""}] * 5)
    lists.tick("streamed")
    read_as_a_stream(lists.dsn, group_id)
    lists.send_many("streamed", [{"body": b""}] * 3)
    lists.tick("streamed")
    with logged_in(chromium, airflow, "viewer") as page:
        open_view(page, airflow, "?view=groups&sort=lag")
        row = page.get_by_role("row", name=re.compile("^stream-of-spark streamed "))
        # Ready, the oldest of these, in flight, waiting for a retry, dead letters, read to.
        expect(row).to_have_accessible_name(
            re.compile(r"^stream-of-spark streamed 3 [\d-]+ [\d:]+ .*ago 0 0 0 [\d-]+ [\d:]+ .*ago$")
        )
