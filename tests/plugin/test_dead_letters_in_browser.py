"""Dead letters are found by when they died and what their reason lacks; actions keep to that (X12, X24)."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect
from tests.plugin.airflow_server import AirflowServer
from tests.plugin.browsing import choose_all, close, logged_in, open_view

from duewheel.store import RetryPolicy
from duewheel.store.broker import Broker
from duewheel.store.values.limits import LONGEST_WAIT

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page, Route

    from duewheel.store.consuming.consumer import Consumer

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.needs("chromium")]

MINUTE = timedelta(minutes=1)
YESTERDAY = datetime.now(UTC).replace(microsecond=0) - timedelta(days=1)


@pytest.fixture
def letters(shop: Broker, shop_dsn: str) -> Broker:
    """Dead letters of a group: two that died yesterday, and three of today."""
    instant = YESTERDAY
    with Broker(shop_dsn, clock=lambda: instant) as yesterday:
        yesterday.create_topic("dying-by-time", message_type="NORMAL", queues=1)
        consumer = yesterday.consumer("dying-by-time", "dying-by-time", retry=RetryPolicy(0, (MINUTE,)))
        for key, reason in (("y-1", "HTTP 503"), ("y-2", "poison")):
            yesterday.send("dying-by-time", b"", key=key)
            consumer.nack(consumer.receive(wait=LONGEST_WAIT), reason=reason)
            instant += MINUTE
    consumer = shop.consumer("dying-by-time", "dying-by-time", retry=RetryPolicy(0, (MINUTE,)))
    for key, reason in (("t-1", "HTTP 503"), ("t-2", "HTTP 404"), ("t-3", "poison")):
        shop.send("dying-by-time", b"", key=key)
        consumer.nack(consumer.receive(wait=LONGEST_WAIT), reason=reason)
    return shop


def test_x24_dead_letters_of_a_time_and_without_a_reason_are_redriven_and_no_others(
    chromium: Browser, airflow: AirflowServer, letters: Broker
) -> None:
    with logged_in(chromium, airflow, "op") as page:
        open_view(page, airflow, "?view=dead&group=dying-by-time")
        rows = page.get_by_role("region", name="Dead letters", exact=True).get_by_role("row")
        reasons = page.get_by_role("region", name="Reasons")
        expect(rows).to_have_count(1 + 5)
        page.locator("input[name=lacks]").fill("poison")
        page.locator("input[name=lacks]").press("Enter")
        expect(rows).to_have_count(1 + 3)
        expect(page.get_by_text("3 of 3", exact=True)).to_be_visible()
        # What is done for a reason would reach what the list leaves out.
        expect(reasons).to_have_count(0)
        page.locator("input[name=from]").fill(f"{YESTERDAY + timedelta(hours=1):%Y-%m-%dT%H:%M}")
        page.locator("input[name=from]").press("Enter")
        expect(rows).to_have_count(1 + 2)
        with page.expect_download() as download:
            page.get_by_role("link", name="Export JSON lines").click()
        exported = [json.loads(line)["key"] for line in download.value.path().read_text().splitlines()]
        assert exported == ["t-1", "t-2"]
        page.locator("input[name=lacks]").fill("")
        page.locator("input[name=lacks]").press("Enter")
        # The reasons are those of that time.
        expect(reasons.get_by_role("row", name=re.compile("^HTTP 503 1 "))).to_be_visible()
        dialog = page.get_by_role("alertdialog")
        reasons.get_by_role("row", name=re.compile("^HTTP 503 ")).get_by_role(
            "button", name="Discard"
        ).click()
        expect(dialog).to_contain_text(
            f"dead from {YESTERDAY + timedelta(hours=1):%Y-%m-%d %H:%M}:00.000 in UTC"
        )
        expect(dialog.get_by_text("1 dead letter has it.")).to_be_visible()
        dialog.get_by_role("button", name="Discard").click()
        expect(dialog.get_by_text("1 discarded.")).to_be_visible()
        close(dialog)
        page.locator("input[name=lacks]").fill("poison")
        page.locator("input[name=lacks]").press("Enter")
        expect(rows).to_have_count(1 + 1)
        # What is left of the page is less than what matches once another one has died.
        consumer = letters.consumer("dying-by-time", "dying-by-time")
        letters.send("dying-by-time", b"", key="t-4")
        consumer.nack(consumer.receive(wait=LONGEST_WAIT), reason="HTTP 404")
        choose_all(page)
        page.get_by_role("button", name="Redrive", exact=True).last.click()
        dialog.get_by_role("button", name="Redrive").click()
        expect(dialog.get_by_text("1 sent again.")).to_be_visible()
        close(dialog)
        expect(rows.filter(has_text="t-4")).to_be_visible()
    left = {one.key for one in letters.dead_letters("dying-by-time", redriven=False)}
    assert left == {"y-1", "y-2", "t-3", "t-4"}


def test_x24_a_time_that_is_not_understood_lists_no_dead_letters(
    chromium: Browser, airflow: AirflowServer, letters: Broker
) -> None:
    with logged_in(chromium, airflow, "op") as page:
        open_view(page, airflow, "?view=dead&group=dying-by-time&until=2026-01-05")
        expect(page.get_by_role("alert")).to_contain_text("“2026-01-05” is no instant with its time zone.")
        expect(page.get_by_text("The filter is not understood, so nothing is listed.")).to_be_visible()
        expect(page.get_by_role("button", name=re.compile("Redrive|Discard"))).to_have_count(0)
        page.get_by_role("button", name="Clear").click()
        expect(page.get_by_role("region", name="Dead letters", exact=True)).to_be_visible()


#: What acts on all dead letters of a filter or a reason, and the word for what it has done.
ON_ALL = (("Redrive", "sent again"), ("Discard", "discarded"), ("Redrive all", "sent again"))


@pytest.fixture
def many(shop: Broker, request: pytest.FixtureRequest) -> Consumer:
    """The consumer of a group with 600 dead letters, more than a portion; its topic has the same name."""
    name = re.sub(r"\W+", "-", request.node.name)
    shop.create_topic(name, message_type="NORMAL", queues=1)
    consumer = shop.consumer(name, name, retry=RetryPolicy(0, (MINUTE,)))
    shop.send_many(name, [{"body": b"", "key": f"old-{n}"} for n in range(600)])
    consumer.nack(consumer.receive(max_messages=600, wait=LONGEST_WAIT), reason="HTTP 503")
    return consumer


def asked_on_all(page: Page, airflow: AirflowServer, name: str, action: str) -> Locator:
    """The dialog of an action on all dead letters of the group and the topic of a name, with its question."""
    open_view(page, airflow, f"?view=dead&group={name}&topic={name}")
    expect(page.get_by_text("200 of 600", exact=True)).to_be_visible()
    dialog = page.get_by_role("alertdialog")
    if action == "Redrive all":
        choose_all(page)
        page.get_by_role("button", name="Select all 600").click()
        page.get_by_role("button", name=action).click()
        expect(dialog).to_contain_text(f"All dead letters of {name}, on topic {name}, are sent again")
        expect(dialog).to_contain_text("600 dead letters that match to be sent again.")
    else:
        page.get_by_role("region", name="Reasons").get_by_role("button", name=action, exact=True).click()
        expect(dialog).to_contain_text(f"All dead letters of {name} on topic {name} with this reason are")
        expect(dialog).to_contain_text("600 dead letters have it.")
    return dialog


def test_x12_reasons_that_were_not_reached_are_told_from_none(
    chromium: Browser, airflow: AirflowServer, letters: Broker
) -> None:
    def answer_without_reasons(route: Route) -> None:
        answer = route.fetch()
        # As behind a hundred thousand that are done.
        route.fulfill(response=answer, json=answer.json() | {"complete": complete, "reasons": []})

    complete = False
    with logged_in(chromium, airflow, "viewer") as page:
        page.route(re.compile("/dead-letter-reasons"), answer_without_reasons)
        open_view(page, airflow, "?view=dead&group=dying-by-time")
        expect(page.get_by_text("No reasons are shown: the oldest 50 000 dead letters")).to_be_visible()
        complete = True
        page.get_by_role("button", name="Refresh").click()
        expect(page.get_by_text("No reasons are shown")).to_have_count(0)


def test_x08_previous_page_leads_back_by_one_page(
    chromium: Browser, airflow: AirflowServer, many: Consumer
) -> None:
    with logged_in(chromium, airflow, "viewer") as page:
        open_view(page, airflow, f"?view=dead&group={many.group}&topic={many.group}")
        letters = page.get_by_role("region", name="Dead letters", exact=True)
        previous = page.get_by_role("button", name="Previous page")
        expect(letters.get_by_role("row").nth(1)).to_contain_text("old-0")
        expect(previous).to_have_attribute("aria-disabled", "true")

        def turn(way: str, first: int) -> None:
            page.get_by_role("button", name=f"{way} page").click()
            expect(letters.get_by_role("row").nth(1).get_by_text(f"old-{first}", exact=True)).to_be_visible()

        turn("Next", 200)
        turn("Next", 400)
        turn("Previous", 200)
        turn("Previous", 0)
        expect(previous).to_have_attribute("aria-disabled", "true")


@pytest.mark.parametrize(("action", "done"), ON_ALL)
def test_x24_what_dies_after_the_question_is_left_alone(
    chromium: Browser, airflow: AirflowServer, shop: Broker, many: Consumer, action: str, done: str
) -> None:
    name = many.group
    died: list[str] = []

    def die_first(route: Route) -> None:
        # One that is new, and of those that were sent again whatever is there.
        died.append(f"new-{len(died)}")
        shop.send(name, b"", key=died[-1])
        while batch := many.receive(max_messages=1_000):
            many.nack(batch, reason="HTTP 503")
        route.continue_()

    with logged_in(chromium, airflow, "op") as page:
        dialog = asked_on_all(page, airflow, name, action)
        page.route(re.compile("/dead-letters/(redrive|discard)"), die_first)
        dialog.get_by_role("button", name=action, exact=True).click()
        expect(dialog.get_by_role("status")).to_contain_text(f"600 {done}.")
    assert len(died) == 2
    left = {one.key for one in shop.dead_letters(name, redriven=False, max_messages=1_000)}
    again = set() if action == "Discard" else {f"old-{n}" for n in range(500)}
    assert left == {*died, *again}


@pytest.mark.parametrize(("action", "done"), ON_ALL)
def test_x12_what_another_operator_took_of_a_portion_does_not_end_an_action(
    chromium: Browser, airflow: AirflowServer, shop: Broker, many: Consumer, action: str, done: str
) -> None:
    portions: list[int] = []

    def take_one(route: Route) -> None:
        answer = route.fetch()
        said = answer.json()
        portions.append(said["matched"])
        # As if another one had been first, within the same statement.
        said["done"] -= len(portions) == 1
        route.fulfill(response=answer, json=said)

    with logged_in(chromium, airflow, "op") as page:
        dialog = asked_on_all(page, airflow, many.group, action)
        page.route(re.compile("/dead-letters/(redrive|discard)"), take_one)
        dialog.get_by_role("button", name=action, exact=True).click()
        expect(dialog.get_by_role("status")).to_contain_text(f"599 {done}.")
    assert portions == [500, 100]
    assert shop.dead_letters(many.group, redriven=False) == []
