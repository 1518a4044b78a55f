"""The page in a real browser against a real Airflow: what an operator of a shop sees and does (X08)."""

from __future__ import annotations

import gzip
import json
import os
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from playwright.sync_api import expect
from psycopg2.extensions import parse_dsn
from tests.conftest import execute
from tests.plugin.airflow_server import PREFIX, AirflowServer
from tests.plugin.browsing import (
    NARROW,
    SHARED_ANSWER_MS,
    WIDE,
    choose,
    choose_all,
    close,
    findings,
    follow,
    logged_in,
    open_view,
    take_picture,
)

from duewheel.cli.demo.processes import end, start
from duewheel.embedded.postgres import EmbeddedPostgres
from duewheel.plugin.bundle import _BUILT
from duewheel.store import RetryPolicy
from duewheel.store.broker import Broker
from duewheel.store.operations import overview
from duewheel.store.values.limits import LONGEST_WAIT

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page, Route

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.needs("chromium")]

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)


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
    batch = consumer.receive(max_messages=32, wait=LONGEST_WAIT)
    # All of them have an answer: a lease that ended would make dead letters in the midst of a test.
    consumer.nack(batch[:5], reason="HTTP 503: the carrier does not answer")
    consumer.ack(batch[5:])
    other = shop.consumer("orders.placed", "bill", name="worker-2", retry=RetryPolicy(3, (HOUR,)))
    taken = other.receive(max_messages=10)
    other.nack(taken[:4], reason="HTTP 429: too many requests")
    shop.add_schedule("clean-up", "orders.timeout", b"", cron="0 5 * * *", timezone="Europe/Berlin")
    return shop


@pytest.fixture(scope="module")
def wheel(shop_at_work: Broker, shop_dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A wheel that turns in a process of its own."""
    log = tmp_path_factory.mktemp("wheel") / "wheel.log"
    command = [sys.executable, "-m", "duewheel.cli", "wheel", "run", "--dsn", shop_dsn]
    child = start("wheel", command, environment=os.environ, log=log)
    yield
    end([child], grace_seconds=5)


def tab_to(page: Page, wanted: Locator) -> None:
    """Go there as one does without a mouse."""
    for _ in range(80):
        if wanted.evaluate("one => one === document.activeElement"):
            return
        page.keyboard.press("Tab")
    pytest.fail(f"no way leads to {wanted} by the Tab key")


def test_x08_the_script_is_small() -> None:
    assert len(gzip.compress(_BUILT.read_bytes())) < 80_000


def test_x08_an_operator_without_a_mouse_finds_an_order_by_its_key_and_recalls_it(
    chromium: Browser, airflow: AirflowServer, shop_at_work: Broker
) -> None:
    with logged_in(chromium, airflow, "op") as page:
        page.goto(airflow.url)
        delays = page.get_by_role("link", name="Delays")
        expect(delays).to_be_visible(timeout=30_000)
        tab_to(page, delays)
        page.keyboard.press("Enter")
        expect(page.get_by_text(re.compile("Due: .* next hour by minute"))).to_be_visible()
        tab_to(page, page.get_by_role("link", name="Messages", exact=True))
        page.keyboard.press("Enter")
        for name, value in (("topic", "orders.timeout"), ("key", "order-77")):
            tab_to(page, page.locator(f"input[name={name}]"))
            page.keyboard.type(value)
            page.keyboard.press("Enter")
            expect(page.locator(f"input[name={name}]")).to_be_focused()
        row = page.get_by_role("row", name=re.compile("order-77 "))
        expect(row).to_be_visible()
        link = row.get_by_role("link").last
        # It opens in another tab too.
        expect(link).to_have_attribute("href", re.compile(rf"^{PREFIX}/plugin/duewheel\?.*view=message"))
        tab_to(page, link)
        page.keyboard.press("Enter")
        heading = page.get_by_role("heading", name="Message order-77")
        expect(heading).to_be_visible()
        expect(page.get_by_role("heading", name="Delay messages")).to_be_focused()
        expect(page.get_by_text('"amount": "19.90"')).to_be_visible()
        recall = page.get_by_role("button", name="Recall")
        tab_to(page, recall)
        page.keyboard.press("Enter")
        dialog = page.get_by_role("alertdialog")
        expect(dialog.get_by_role("button", name="Cancel")).to_be_focused()
        page.keyboard.press("Escape")
        expect(dialog).to_have_count(0)
        expect(recall).to_be_focused()
        page.keyboard.press("Enter")
        tab_to(page, dialog.get_by_role("button", name="Recall"))
        page.keyboard.press("Enter")
        # A screen reader says so.
        expect(dialog.get_by_role("status")).to_contain_text("1 recalled: never delivered")
        expect(dialog.get_by_role("button", name="Close").first).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.get_by_text("recalled", exact=True).first).to_be_visible()
        # The button is gone; who goes on by keyboard is still at the message.
        expect(heading).to_be_focused()
        page.go_back()
        expect(page.get_by_role("row", name=re.compile("order-77 .*recalled"))).to_be_visible()
    (found,) = shop_at_work.find_key("orders.timeout", "order-77")
    assert found.recalled


def test_x08_the_wheel_is_seen_to_turn(
    chromium: Browser, airflow: AirflowServer, shop_at_work: Broker, wheel: None
) -> None:
    shop_at_work.create_topic("soon")
    with logged_in(chromium, airflow, "viewer") as page:
        open_view(page, airflow, "?span=minute&topic=soon")
        # It stands in one line, and each by itself on demand.
        page.get_by_role("button", name="Show the wheels").click(timeout=30_000)
        wheels = page.get_by_role("region", name="Wheels")
        expect(wheels.get_by_role("row", name=re.compile(rf"^{gethostname()[:32]}:\d+ "))).to_be_visible(
            timeout=30_000
        )
        expect(page.get_by_text("Due: 0 in the next minute by second")).to_be_visible()
        shop_at_work.send_many("soon", [{"body": b"", "delay": 20 * SECOND}] * 3)
        expect(page.get_by_text("Due: 3 in the next minute by second")).to_be_visible(timeout=20_000)
        # Nobody loads the page again: it moves by itself.
        expect(page.get_by_text("Due: 0 in the next minute by second")).to_be_visible(timeout=60_000)
        late = page.get_by_role("region", name="Lateness of release by topic")
        expect(late.get_by_role("row", name=re.compile("soon .* wheel"))).to_be_visible(timeout=20_000)


def test_x08_an_operator_reschedules_all_of_a_key_prefix(
    chromium: Browser, airflow: AirflowServer, shop_at_work: Broker
) -> None:
    with logged_in(chromium, airflow, "op") as page:
        open_view(page, airflow, "?view=messages&topic=vouchers.expire&key=v-1")
        expect(page.get_by_text("50 shown; of all that match, 111 wait")).to_be_visible()
        expect(page.get_by_role("button", name=re.compile("Reschedule"))).to_have_count(0)
        choose_all(page)
        expect(page.get_by_role("group", name="Chosen")).to_contain_text("50 chosen:")
        page.get_by_role("button", name="Select all 111").click()
        page.get_by_role("button", name="Reschedule all").click()
        dialog = page.get_by_role("alertdialog")
        expect(dialog.get_by_text("111 messages wait and match now.")).to_be_visible()
        dialog.locator("select[name=delay]").select_option("21600")
        dialog.get_by_role("button", name="Reschedule all").click()
        expect(dialog.get_by_text("111 rescheduled")).to_be_visible()
        close(dialog)
        follow(page, "?view=messages&topic=vouchers.expire&key=v-24")
        expect(page.get_by_role("row", name=re.compile("v-249 "))).to_be_visible()
        choose_all(page)
        # There are no others.
        expect(page.get_by_role("button", name=re.compile("^Select all"))).to_have_count(0)
        page.get_by_role("button", name="Deliver now").click()
        dialog.get_by_role("button", name="Deliver now").click()
        expect(dialog.get_by_text("11 rescheduled")).to_be_visible()
    moved = shop_at_work.list_messages("vouchers.expire", key_prefix="v-1", max_messages=1_000).messages
    assert len(moved) == 111
    assert min(one.deliver_at - one.born_at for one in moved) > 5 * HOUR


@pytest.mark.parametrize("wrong", ["from=garbage", "until=2030-01-05T10:00", "state=asleep"])
def test_x08_a_filter_that_is_not_understood_offers_no_action_on_all(
    chromium: Browser, airflow: AirflowServer, shop_at_work: Broker, wrong: str
) -> None:
    with logged_in(chromium, airflow, "op") as page:
        open_view(page, airflow, f"?view=messages&topic=orders.timeout&{wrong}")
        expect(page.get_by_text("The filter is not understood")).to_be_visible()
        expect(page.get_by_role("checkbox")).to_have_count(0)
        expect(page.get_by_role("row")).to_have_count(0)
        if "state" in wrong:
            page.locator("select[name=state]").select_option("waiting")
        else:
            page.get_by_role("button", name="Clear").click()
        expect(page.get_by_role("checkbox", name="Choose all")).to_be_visible()


def test_x08_an_address_without_a_view_that_the_page_has_says_so(
    chromium: Browser, airflow: AirflowServer, shop_at_work: Broker
) -> None:
    with logged_in(chromium, airflow, "viewer") as page:
        open_view(page, airflow, "?view=typo")
        expect(page.get_by_text("a view “typo”, which the page does not have")).to_be_visible()


def test_x08_instants_are_those_of_the_zone_chosen_in_airflow_and_a_link_is_the_same_for_everybody(
    chromium: Browser, airflow: AirflowServer, shop_at_work: Broker
) -> None:
    shop_at_work.create_topic("zones", max_delay=timedelta(days=3_650))
    for hour in (8, 9, 10):
        shop_at_work.send(
            "zones", b"", deliver_at=datetime(2030, 1, 5, hour, 30, tzinfo=UTC), key=f"at-{hour}"
        )
    with logged_in(chromium, airflow, "viewer") as page:
        open_view(page, airflow, "?view=messages&topic=zones")
        expect(page.get_by_text("times in UTC")).to_be_visible()
        page.evaluate("localStorage.setItem('timezone', '\"Asia/Kathmandu\"')")
        page.evaluate("dispatchEvent(new Event('local-storage'))")
        expect(page.get_by_text("times in Asia/Kathmandu")).to_be_visible()
        expect(page.get_by_role("row", name=re.compile("2030-01-05 15:15:00 .*at-9"))).to_be_visible()
        page.locator("input[name=from]").fill("2030-01-05T15:00")
        page.locator("input[name=from]").press("Enter")
        rows = page.get_by_role("region", name="Messages").get_by_role("row")
        expect(rows).to_have_count(1 + 2)
        link = page.url
        assert "from=2030-01-05T09%3A15%3A00.000Z" in link
        page.evaluate("localStorage.setItem('timezone', '\"America/New_York\"')")
        page.goto(link)
        expect(rows).to_have_count(1 + 2)
        expect(page.locator("input[name=from]")).to_have_value("2030-01-05T04:15")


def test_x08_a_moved_message_reads_moved_and_each_of_its_ids_leads_to_the_others(
    chromium: Browser, airflow: AirflowServer, shop_at_work: Broker
) -> None:
    shop_at_work.create_topic("moving")
    sent = shop_at_work.send("moving", b"", delay=HOUR, key="postponed").message_id
    now = shop_at_work.reschedule(sent, delay=2 * HOUR).message_id
    with logged_in(chromium, airflow, "op") as page:
        open_view(page, airflow, "?view=messages&topic=moving&state=moved")
        row = page.get_by_role("row", name=re.compile("postponed moved to "))
        expect(row).to_be_visible()
        expect(row.get_by_role("checkbox")).to_have_count(0)
        row.locator(f"a[href*='{now}']").click()
        heading = page.get_by_role("heading", name="Message postponed")
        expect(heading).to_be_visible()
        told = page.get_by_text("this is an id that it had before")
        expect(told).to_have_count(0)
        history = page.get_by_role("region", name="History")
        expect(history.get_by_role("row", name=re.compile("^moved "))).to_be_visible()
        history.locator(f"a[href*='{sent}']").first.click()
        expect(told).to_be_visible()
        expect(page.get_by_text("waiting", exact=True).first).to_be_visible()
        # Who acts by an id of before acts on the message.
        page.get_by_role("button", name="Recall").click()
        dialog = page.get_by_role("alertdialog")
        dialog.get_by_role("button", name="Recall").click()
        expect(dialog.get_by_text("1 recalled: never delivered")).to_be_visible()
        close(dialog)
        expect(page.get_by_text("recalled", exact=True).first).to_be_visible()


def test_x08_whoever_recalls_thousands_reads_which_and_types_how_many(
    chromium: Browser, airflow: AirflowServer, shop_at_work: Broker
) -> None:
    shop_at_work.create_topic("thousands")
    shop_at_work.send_many("thousands", [{"body": b"", "delay": HOUR, "key": f"k-{n}"} for n in range(1_200)])
    with logged_in(chromium, airflow, "op") as page:
        open_view(page, airflow, "?view=messages&topic=thousands&key=k-&until=2030-01-05T10:00:00Z")
        choose_all(page, that_match=True)
        page.get_by_role("button", name="Recall all").click()
        dialog = page.get_by_role("alertdialog")
        for words in (
            "on topic thousands",
            "with a key that begins with k-",
            "due before 2030-01-05 10:00:00.000",
        ):
            expect(dialog.get_by_text(words)).to_be_visible()
        expect(dialog.get_by_text("1,200 messages wait and match now.")).to_be_visible()
        recall = dialog.get_by_role("button", name="Recall all")
        expect(recall).to_be_disabled()
        dialog.locator("input[name=number]").fill("120")
        expect(recall).to_be_disabled()
        dialog.locator("input[name=number]").fill("1200")
        recall.click()
        expect(dialog.get_by_text("1,200 recalled: never delivered")).to_be_visible()


def test_x08_a_chart_is_hatched_where_it_was_not_counted(
    chromium: Browser, airflow: AirflowServer, shop_at_work: Broker
) -> None:
    with logged_in(chromium, airflow, "viewer") as page:
        counted = 60

        def hurried(route: Route) -> None:
            answer = route.fetch()
            view = answer.json()
            view["due"]["counted_steps"] = counted
            view["now_at"] = view["due"]["from_at"] = "2030-01-05T10:00:00Z"
            route.fulfill(response=answer, json=view)

        def drawn() -> str:
            page.wait_for_function("document.querySelector('.uplot canvas').width > 0")
            picture: str = page.locator(".uplot canvas").first.evaluate("one => one.toDataURL()")
            return picture

        page.route(re.compile("/overview"), hurried)
        open_view(page, airflow, "?topic=vouchers.expire")
        expect(page.get_by_text(re.compile("Due: [\\d,]+ in the next hour"))).to_be_visible()
        expect(page.get_by_text("Hatched")).to_have_count(0)
        whole = drawn()
        counted = 20
        expect(page.get_by_text(re.compile("Due: at least [\\d,]+ in the next hour"))).to_be_visible()
        told = page.get_by_text("no time to count from 2030-01-05 10:20:00 on")
        expect(told).to_be_visible()
        expect(page.get_by_text("choose it above")).to_have_count(0)
        assert drawn() != whole
        follow(page, "?span=hour")
        expect(page.get_by_text("One topic is counted alone: choose it above.").first).to_be_visible()


def test_x08_a_wheel_that_has_stopped_is_told_from_one_that_turns(
    chromium: Browser, airflow: AirflowServer, shop_at_work: Broker
) -> None:
    def two_wheels(route: Route) -> None:
        answer = route.fetch()
        view = answer.json()
        view["now_at"] = "2030-01-05T10:00:00Z"
        view["wheels"] = [
            {
                "name": name,
                "login": "wheel",
                "client_address": None,
                "connections": 2,
                "started_at": "2030-01-05T09:00:00Z",
                "active_at": active_at,
            }
            for name, active_at in (
                ("turning:1", "2030-01-05T10:00:00.212Z"),
                ("frozen:2", "2030-01-05T09:58:00Z"),
            )
        ]
        route.fulfill(response=answer, json=view)

    with logged_in(chromium, airflow, "viewer") as page:
        page.route(re.compile("/overview"), two_wheels)
        open_view(page, airflow)
        wheels = page.get_by_role("region", name="Wheels")
        expect(wheels.get_by_role("row", name=re.compile("^turning:1 .*just now$"))).to_be_visible()
        expect(
            wheels.get_by_role("row", name=re.compile("^frozen:2 .*2 min ago does not turn$"))
        ).to_be_visible()
        expect(page.get_by_role("heading", name="1 wheel turns, 1 does not")).to_be_visible()


def test_x08_a_dead_letter_says_so_first_and_its_body_is_as_it_was_sent(
    chromium: Browser, airflow: AirflowServer, shop_at_work: Broker
) -> None:
    shop_at_work.create_topic("dying-one", message_type="NORMAL")
    body = b'{"price": 1.10, "price": 1.2, "big": 12345678901234567890123, "none": [], "text": "a, {b"}'
    sent = shop_at_work.send("dying-one", body, key="poison")
    for group, retry in (("first", RetryPolicy(0, (HOUR,))), ("second", RetryPolicy(3, (HOUR,)))):
        consumer = shop_at_work.consumer("dying-one", group, retry=retry)
        consumer.nack(consumer.receive(wait=LONGEST_WAIT), reason="boom")
    with logged_in(chromium, airflow, "op") as page:
        open_view(page, airflow, f"?view=message&id={sent.message_id}")
        facts = page.locator("section", has=page.get_by_role("heading", name="Message poison"))
        expect(facts.get_by_text("dead letter in first")).to_be_visible()
        expect(facts.get_by_text("waiting for a retry in second")).to_be_visible()
        expect(facts.get_by_text("released", exact=True)).to_have_count(0)
        told = page.get_by_role("region", name="Body").inner_text().splitlines()
        assert [line.strip().rstrip(",") for line in told] == [
            "{",
            '"price": 1.10',
            '"price": 1.2',
            '"big": 12345678901234567890123',
            '"none": []',
            '"text": "a, {b"',
            "}",
        ]


def test_x12_a_dead_letter_is_edited_and_sent_as_a_new_message_and_who_did_it_is_told(
    chromium: Browser, airflow: AirflowServer, shop_at_work: Broker
) -> None:
    shop_at_work.create_topic("editing", message_type="NORMAL")
    sent = shop_at_work.send(
        "editing", {"amount": "19,90"}, key="typo", tag="paid", properties={"shop": "secret-shop"}
    )
    consumer = shop_at_work.consumer("editing", "book", retry=RetryPolicy(0, (MINUTE,)))
    consumer.nack(consumer.receive(wait=LONGEST_WAIT), reason="no number: 19,90")
    with logged_in(chromium, airflow, "op") as page:
        open_view(page, airflow, "?view=dead&group=book")
        # Retention is counted down.
        expect(page.get_by_role("row", name=re.compile("typo .* in \\d+ d"))).to_be_visible()
        page.get_by_role("row", name=re.compile("typo ")).get_by_role("link").click()
        with page.expect_download() as download:
            page.get_by_role("link", name="Download").click()
        assert download.value.path().read_bytes() == b'{"amount":"19,90"}'
        page.get_by_role("button", name="Edit and send").click()
        dialog = page.get_by_role("alertdialog")
        body = dialog.locator("textarea[name=body]")
        body.fill(body.input_value().replace("19,90", "19.90"))
        dialog.get_by_role("button", name="Edit and send").click()
        expect(dialog.get_by_text("Sent as a new message")).to_be_visible()
        close(dialog)
        expect(page.get_by_role("button", name="Edit and send")).to_have_count(0)
        acted = page.get_by_role("region", name="Actions of users")
        expect(acted.get_by_role("row", name=re.compile("op edit and send again"))).to_be_visible()
    batch = consumer.receive(wait=LONGEST_WAIT)
    (new,) = batch
    assert new.value == {"amount": "19.90"}
    assert (new.key, new.tag) == ("typo", "paid")
    assert new.properties == {
        "shop": "secret-shop",
        "content-type": "application/json",
        "edited_from": sent.message_id,
    }
    consumer.ack(batch)
    assert shop_at_work.dead_letters("book", redriven=False) == []
    _, logs = airflow.call("GET", "/api/v2/eventLogs?event=duewheel.resend")
    (line,) = (one["extra"] for one in logs["event_logs"] if sent.message_id in one["extra"])
    # Bodies and properties are for fewer than the audit log.
    assert "19.90" not in line
    assert "secret-shop" not in line


@pytest.mark.parametrize("view", ["leases", "retries", "dead"])
def test_x08_a_mistyped_name_is_no_empty_list(
    chromium: Browser, airflow: AirflowServer, shop_at_work: Broker, view: str
) -> None:
    with logged_in(chromium, airflow, "viewer") as page:
        open_view(page, airflow, f"?view={view}&group=shop-typo")
        expect(page.get_by_role("alert")).to_contain_text("shop-typo")
        follow(page, f"?view={view}&group=ship&topic=typo.topic")
        expect(page.get_by_role("alert")).to_contain_text("typo.topic")


def test_x08_an_operator_pauses_a_group_and_resumes_and_deletes_it(
    chromium: Browser, airflow: AirflowServer, shop_at_work: Broker
) -> None:
    for topic, number in (("pausing-few", 1), ("pausing-many", 2_000)):
        shop_at_work.create_topic(topic, message_type="NORMAL")
        shop_at_work.send_many(topic, [{"body": b""}] * number)
        consumer = shop_at_work.consumer(topic, "pausable")
        consumer.ack(consumer.receive(max_messages=1, wait=LONGEST_WAIT))
    with logged_in(chromium, airflow, "op") as page:
        open_view(page, airflow, "?view=groups")
        page.get_by_role("button", name="that lag most").click()
        rows = page.get_by_role("region", name="Consumer groups").get_by_role("row")
        first = rows.nth(1)
        expect(first).to_contain_text("pausing-many")
        expect(first).to_contain_text("1,999")
        # Nothing leads from a zero.
        expect(first.get_by_role("link")).to_have_count(0)
        expect(page.get_by_role("columnheader", name="Stands still")).to_be_visible()
        dialog = page.get_by_role("alertdialog")
        first.get_by_role("button", name="Pause").click()
        dialog.get_by_role("button", name="Pause").click()
        expect(dialog.get_by_text("pausable is paused.")).to_be_visible()
        close(dialog)
        expect(first.get_by_text(re.compile("^paused "))).to_be_visible()
        assert len(consumer.receive()) == 0
        # It is so for one topic, and every reader of the overview sees it.
        follow(page, "?topic=pausing-many")
        shown = page.get_by_role("region", name="Consumer groups").get_by_role(
            "row", name=re.compile("^pausable")
        )
        expect(shown.get_by_text(re.compile("^paused "))).to_be_visible()
        follow(page, "?topic=pausing-few")
        expect(shown).to_be_visible()
        expect(shown.get_by_text(re.compile("^paused "))).to_have_count(0)
        follow(page, "?view=groups&sort=lag")
        first.get_by_role("button", name="Resume").click()
        dialog.get_by_role("button", name="Resume").click()
        expect(dialog.get_by_text("pausable goes on.")).to_be_visible()
        close(dialog)
        assert len(consumer.receive(max_messages=1)) == 1
        first.get_by_role("button", name="Delete").click()
        expect(dialog.get_by_text("0 dead letters and 0 retries go with it.")).to_be_visible()
        dialog.get_by_role("button", name="Delete").click()
        expect(dialog.get_by_text("pausable is deleted on pausing-many.")).to_be_visible()
        close(dialog)
        expect(rows.filter(has_text="pausing-many")).to_have_count(0)
    assert [one.topic for one in shop_at_work.groups() if one.group == "pausable"] == ["pausing-few"]


def test_x08_an_operator_releases_a_lease_and_makes_retries_due_now(
    chromium: Browser, airflow: AirflowServer, shop_at_work: Broker
) -> None:
    shop_at_work.create_topic("hung", message_type="NORMAL", queues=1)
    consumer = shop_at_work.consumer("hung", "hung", retry=RetryPolicy(3, (timedelta(hours=1),)))
    shop_at_work.send_many("hung", [{"body": b"", "key": f"hung-{n}"} for n in range(3)])
    consumer.receive(1, invisible=timedelta(hours=1), wait=LONGEST_WAIT)
    for _ in range(2):
        consumer.nack(consumer.receive(1, wait=LONGEST_WAIT), reason="no paper")
    with logged_in(chromium, airflow, "op") as page:
        dialog = page.get_by_role("alertdialog")
        open_view(page, airflow, "?view=leases&group=hung")
        row = page.get_by_role("region", name="Leases").get_by_role("row").nth(1)
        row.get_by_role("button", name="Release").click()
        dialog.get_by_role("button", name="Release").click()
        expect(dialog.get_by_text("The lease is released: 1 message sent on.")).to_be_visible()
        close(dialog)
        expect(page.get_by_text("No consumer has messages in hand.")).to_be_visible()
        follow(page, "?view=retries&group=hung")
        rows = page.get_by_role("region", name="Retries").get_by_role("row")
        rows.filter(has_text="hung-1").get_by_role("checkbox").click(force=True)
        page.get_by_role("button", name="Retry now").click()
        dialog.get_by_role("button", name="Retry now").click()
        expect(dialog.get_by_text("1 due now")).to_be_visible()
        close(dialog)


def test_x08_a_group_that_stands_still_is_marked_and_names_are_completed(
    chromium: Browser, airflow: AirflowServer, shop_at_work: Broker
) -> None:
    def standing_still(route: Route) -> None:
        answer = route.fetch()
        view = answer.json()
        view["now_at"] = "2030-01-05T10:00:00Z"
        for one in view["progress"]:
            one["stalled_since"] = "2030-01-05T09:20:00Z" if one["group"] == "ship" else None
            one["read_to"] = "2030-01-05T09:15:00Z" if one["group"] == "ship" else None
        route.fulfill(response=answer, json=view)

    with logged_in(chromium, airflow, "viewer") as page:
        page.route(re.compile("/groups"), standing_still)
        open_view(page, airflow, "?view=groups&sort=dead")
        expect(
            page.get_by_role("row", name=re.compile("^ship .*45 min ago since 40 min ago"))
        ).to_be_visible()
        expect(page.get_by_text("since 40 min ago")).to_have_count(1)
        follow(page, "?view=leases")
        for name, value in (("topic", "orders.placed"), ("group", "ship")):
            names = page.locator(f"input[name={name}]").get_attribute("list")
            expect(page.locator(f"datalist#{names} option[value='{value}']")).to_have_count(1)


def test_x08_every_view_begins_with_the_state_of_the_broker(
    chromium: Browser, airflow: AirflowServer, shop_at_work: Broker
) -> None:
    with logged_in(chromium, airflow, "viewer") as page:
        open_view(page, airflow, "?view=schedules")
        pulse = page.get_by_role("region", name="State of the broker")
        expect(pulse).to_contain_text(re.compile(r"Waiting: (≈ )?\d"))
        expect(pulse).to_contain_text(re.compile("Dead letters: \\d"))

        def at_night(route: Route) -> None:
            answer = route.fetch()
            route.fulfill(
                response=answer,
                json={
                    "shared_seconds": 2,
                    "now_at": "2030-01-05T10:00:00Z",
                    "wheels": [],
                    "overdue": [{"topic": "orders.timeout", "due_at": "2030-01-05T09:48:00Z"}],
                    "waiting": 419_066,
                    "waiting_is_exact": False,
                    "dead": 5_000,
                    "lag": {
                        "group": "ship",
                        "topic": "orders.placed",
                        "ready": 10,
                        "oldest_deliver_at": "2030-01-05T07:00:00Z",
                        "inflight": 0,
                        "waiting_retry": 0,
                        "dead": 5_000,
                        "paused_at": None,
                    },
                    "late": {
                        "topic": "orders.timeout",
                        "ticks": 3,
                        "p50_seconds": 0.012,
                        "p99_seconds": 61,
                        "newest_at": "2030-01-05T09:59:00Z",
                        "by_wheel": True,
                    },
                },
            )

        page.route(re.compile("/pulse"), at_night)
        for view in ("topics", "messages", "groups", "leases", "retries", "dead", "schedules"):
            follow(page, f"?view={view}")
            for words in (
                "Wheel: none",
                "Overdue: orders.timeout since 12 min",
                "Waiting: ≈ 419,066",
                "Dead letters: 5,000",
                "Oldest ready message: 3 h for ship",
                "p50 12 ms, p99 1 min 1 s on orders.timeout",
            ):
                expect(pulse).to_contain_text(words, timeout=SHARED_ANSWER_MS)
        pulse.get_by_role("link", name="5,000").click()
        expect(page.get_by_role("region", name="Groups with dead letters")).to_be_visible()
        pulse.get_by_role("link", name="ship").click()
        expect(page.get_by_role("button", name="that lag most")).to_have_attribute("aria-pressed", "true")
        pulse.get_by_role("link", name="orders.timeout").first.click()
        expect(page.get_by_role("heading", name="Messages", exact=True)).to_be_visible()
        expect(page.locator("input[name=topic]")).to_have_value("orders.timeout")
        pulse.get_by_role("link", name="orders.timeout").last.click()
        expect(page.get_by_role("heading", name="Lateness of release")).to_be_visible()
        expect(page.locator("input[name=topic]")).to_have_value("orders.timeout")


def test_x12_an_operator_redrives_one_reason_and_discards_the_poison(
    chromium: Browser, airflow: AirflowServer, shop_at_work: Broker
) -> None:
    shop_at_work.create_topic("reasons", message_type="NORMAL")
    shop_at_work.send_many("reasons", [{"body": b"", "key": f"r-{n}"} for n in range(1_300)])
    consumer = shop_at_work.consumer("reasons", "cause", retry=RetryPolicy(0, (MINUTE,)))
    taken = consumer.receive(max_messages=1_300, wait=LONGEST_WAIT)
    consumer.nack(taken[:1_200], reason="HTTP 50")
    consumer.nack(taken[1_200:], reason="HTTP 503")
    with logged_in(chromium, airflow, "op") as page:
        open_view(page, airflow, "?view=dead&group=cause")
        reasons = page.get_by_role("region", name="Reasons")
        row = {
            name: reasons.get_by_role("row", name=re.compile(f"^{name} ")) for name in ("HTTP 50", "HTTP 503")
        }
        expect(row["HTTP 50"]).to_contain_text("1,200")
        expect(row["HTTP 503"]).to_contain_text("100")
        dialog = page.get_by_role("alertdialog")
        row["HTTP 50"].get_by_role("button", name="Redrive").click()
        expect(dialog.get_by_text("1,200 dead letters have it.")).to_be_visible()
        expect(dialog.get_by_role("button", name="Redrive")).to_be_disabled()
        dialog.locator("input[name=number]").fill("1200")
        dialog.get_by_role("button", name="Redrive").click()
        expect(dialog.get_by_text("1,200 sent again.")).to_be_visible()
        close(dialog)
        expect(row["HTTP 50"]).to_have_count(0)
        letters = page.get_by_role("region", name="Dead letters", exact=True)
        expect(letters.get_by_role("row")).to_have_count(1 + 100)
        choose(letters.get_by_role("checkbox").nth(1))
        page.get_by_role("button", name="Discard", exact=True).last.click()
        dialog.get_by_role("button", name="Discard").click()
        expect(dialog.get_by_text("1 discarded.")).to_be_visible()
        close(dialog)
        # Nothing is chosen any more, so the buttons have gone; the focus is at the list.
        expect(page.get_by_role("group", name="Chosen")).to_have_count(0)
        expect(page.get_by_role("heading", name="Dead letters by topic")).to_be_focused()
        row["HTTP 503"].get_by_role("button", name="Discard").click()
        expect(dialog.get_by_text("99 dead letters have it.")).to_be_visible()
        dialog.get_by_role("button", name="Discard").click()
        expect(dialog.get_by_text("99 discarded.")).to_be_visible()
        close(dialog)
        expect(page.get_by_text("No matching dead letters of this group")).to_be_visible()
    assert shop_at_work.dead_letters("cause", redriven=False) == []
    assert shop_at_work.redrive("cause").redriven == 0


def test_x08_old_rows_stay_until_the_new_ones_are_there_and_nothing_acts_on_them(
    chromium: Browser, airflow: AirflowServer, shop_at_work: Broker
) -> None:
    shop_at_work.create_topic("staying")
    shop_at_work.send_many("staying", [{"body": b"", "delay": HOUR, "key": f"s-{n}"} for n in range(60)])
    with logged_in(chromium, airflow, "op") as page:
        held: list[Route] = []
        page.route(re.compile("/messages.*after="), lambda route: held.append(route))
        open_view(page, airflow, "?view=messages&topic=staying")
        old = page.get_by_role("row", name=re.compile("s-0 "))
        further = page.get_by_role("button", name="Next page")
        choose_all(page, that_match=True)
        further.focus()
        with page.expect_request(re.compile("/messages.*after=")):
            page.keyboard.press("Enter")
        expect(old).to_be_visible()
        expect(page.get_by_role("button", name="Recall all")).to_be_disabled()
        held[0].continue_()
        expect(old).to_have_count(0)
        expect(page.get_by_role("button", name="Recall all")).to_be_enabled()
        expect(further).to_be_focused()


def test_x12_the_count_of_a_redrive_is_that_of_the_reason_in_the_dialog(
    chromium: Browser, airflow: AirflowServer, shop_at_work: Broker
) -> None:
    shop_at_work.create_topic("rated", message_type="NORMAL")
    shop_at_work.send_many("rated", [{"body": b"", "key": f"r-{n:03}"} for n in range(250)])
    consumer = shop_at_work.consumer("rated", "rating", retry=RetryPolicy(0, (MINUTE,)))
    taken = consumer.receive(max_messages=250, wait=LONGEST_WAIT)
    consumer.nack(taken[:240], reason="HTTP 503")
    consumer.nack(taken[240:], reason="HTTP 429")
    with logged_in(chromium, airflow, "op") as page:
        open_view(page, airflow, "?view=dead&group=rating")
        expect(page.get_by_text("200 of 250", exact=True)).to_be_visible()
        choose_all(page)
        page.get_by_role("button", name="Select all 250").click()
        page.get_by_role("button", name="Redrive all").click()
        dialog = page.get_by_role("alertdialog")
        expect(dialog.get_by_text("250 dead letters to be sent again.")).to_be_visible()
        dialog.locator("input[name=reason]").fill("no such reason")
        expect(dialog.get_by_text("0 dead letters that match to be sent again.")).to_be_visible()
        dialog.locator("input[name=reason]").fill("HTTP 429")
        expect(dialog.get_by_text("10 dead letters that match to be sent again.")).to_be_visible()
        dialog.get_by_role("button", name="Redrive all").click()
        expect(dialog.get_by_text("10 sent again.")).to_be_visible()
        close(dialog)
        expect(page.get_by_text("200 of 240", exact=True)).to_be_visible()


def test_x08_what_was_done_is_told_though_it_was_broken_off_or_stopped(
    chromium: Browser, airflow: AirflowServer, shop_at_work: Broker
) -> None:
    shop_at_work.create_topic("broken-off")
    due_at = datetime.now(UTC) + HOUR
    shop_at_work.send_many("broken-off", [{"body": b"", "deliver_at": due_at}] * 17_000)
    with logged_in(chromium, airflow, "op") as page:
        open_view(page, airflow, "?view=messages&topic=broken-off")
        dialog = page.get_by_role("alertdialog")
        told = dialog.get_by_role("status")
        moves: list[Route] = []

        def portion(route: Route) -> None:
            if not json.loads(route.request.post_data or "")["dry_run"]:
                moves.append(route)
                if len(moves) == 2:
                    # As when the API server is started again.
                    route.abort()
                    return
                if len(moves) == 4:
                    return
            route.continue_()

        def reschedule_all(number: int, words: str) -> None:
            page.get_by_role("button", name="Reschedule all").click()
            expect(told).to_contain_text(words)
            dialog.locator("input[name=number]").fill(f"{number}")
            dialog.get_by_role("button", name="Reschedule all").click()

        page.route(re.compile("/messages/reschedule-matching"), portion)
        choose_all(page, that_match=True)
        reschedule_all(17_000, "17,000 messages wait and match now.")
        for words in ("5,000 rescheduled", "API server does not answer", "goes on with the rest"):
            expect(told).to_contain_text(words)
        close(dialog)

        reschedule_all(12_000, "12,000 messages are left.")
        expect(told).to_contain_text("5,000 rescheduled …")
        expect(dialog.get_by_role("button", name="Close")).to_be_disabled()
        dialog.get_by_role("button", name="Stop").click()
        # What is on its way is waited for.
        moves[3].continue_()
        expect(told).to_contain_text("10,000 rescheduled")
        expect(told).to_contain_text("Stopped: the rest are unchanged.")
        close(dialog)

        reschedule_all(2_000, "2,000 messages are left.")
        expect(told).to_have_text("2,000 rescheduled")
        close(dialog)
        # All at one instant, though the portions were asked for one after another.
        waiting = shop_at_work.list_messages("broken-off", due_from=due_at + SECOND, max_messages=1_000)
        assert len({one.deliver_at for one in waiting.messages}) == 1

        page.get_by_role("button", name="Recall all").click()
        expect(dialog.get_by_text("17,000 messages wait and match now.")).to_be_visible()
        dialog.locator("input[name=number]").fill("17000")
        dialog.get_by_role("button", name="Recall all").click()
        expect(told).to_contain_text("17,000 recalled: never delivered")
        close(dialog)
        # Half an instant is no instant, and not "from the beginning" either.
        page.get_by_role("link", name="Groups").click()
        page.get_by_role("row", name=re.compile("^bill ")).get_by_role("button", name="Rewind").click()
        dialog.locator("input[name=to]").press_sequentially("0101")
        dialog.get_by_role("button", name="Rewind").click()
        expect(told).to_contain_text("The instant is not complete.")
        close(dialog)
        # A session that has ended is told, and nothing that was shown is lost.
        page.route(
            re.compile("/duewheel/api/"), lambda route: route.fulfill(status=401, json={"detail": "no"})
        )
        page.get_by_role("link", name="Leases").click()
        expect(page.get_by_role("alert").first).to_contain_text("Your login has expired.")
        expect(page.get_by_role("link", name="Log in").first).to_have_attribute(
            "href", re.compile("login.*next=")
        )


def test_x12_an_operator_redrives_a_dead_letter(
    chromium: Browser, airflow: AirflowServer, shop_at_work: Broker
) -> None:
    before = [one.key for one in shop_at_work.dead_letters("ship", redriven=False)]
    with logged_in(chromium, airflow, "op") as page:
        open_view(page, airflow, "?view=dead")
        page.get_by_role("region", name="Groups with dead letters").get_by_role("link", name="ship").click()
        with page.expect_download() as download:
            page.get_by_role("link", name="Export JSON lines").click()
        exported = [json.loads(line) for line in download.value.path().read_text().splitlines()]
        assert [one["key"] for one in exported] == before
        choose(page.get_by_role("checkbox", name=f"Choose {before[0]}", exact=True))
        # Below those of the reasons.
        page.get_by_role("button", name="Redrive", exact=True).last.click()
        dialog = page.get_by_role("alertdialog")
        dialog.get_by_role("button", name="Redrive").click()
        expect(dialog.get_by_text("1 sent again.")).to_be_visible()
        dialog.get_by_role("button", name="Close").first.click()
        expect(page.get_by_role("checkbox", name=f"Choose {before[0]}", exact=True)).to_have_count(0)
        # Found by its key, one is sent again from its own page too.
        page.locator("input[name=key]").fill(str(before[1]))
        page.locator("input[name=key]").press("Enter")
        rows = page.get_by_role("region", name="Dead letters").get_by_role("row")
        expect(rows).to_have_count(1 + sum(str(one).startswith(str(before[1])) for one in before[1:]))
        rows.nth(1).get_by_role("link").click()
        page.get_by_role("region", name="History").get_by_role("button", name="Redrive").click()
        dialog.get_by_role("button", name="Redrive").click()
        expect(dialog.get_by_text("Sent again.")).to_be_visible()
        dialog.get_by_role("button", name="Close").first.click()
        expect(page.get_by_role("button", name="Redrive")).to_have_count(0)
    assert [one.key for one in shop_at_work.dead_letters("ship", redriven=False)] == before[2:]


def test_x19_a_viewer_sees_and_is_offered_nothing(
    chromium: Browser, airflow: AirflowServer, shop_at_work: Broker
) -> None:
    (found,) = shop_at_work.find_key("vouchers.expire", "v-200")
    with logged_in(chromium, airflow, "viewer") as page:
        open_view(page, airflow, f"?view=message&id={found.message_id}")
        expect(page.get_by_text("You may not read bodies")).to_be_visible()
        told = page.get_by_text("You may look here, but change nothing")
        expect(told).to_contain_text("the right to edit the Airflow connection duewheel_default")
        for action in ("Recall", "Reschedule", "Deliver now"):
            expect(page.get_by_role("button", name=action)).to_have_count(0)


def test_x08_markup_in_a_body_is_text(
    chromium: Browser, airflow: AirflowServer, shop_at_work: Broker
) -> None:
    (found,) = shop_at_work.find_key("vouchers.expire", "v-200")
    with logged_in(chromium, airflow, "op") as page:
        open_view(page, airflow, f"?view=message&id={found.message_id}")
        expect(page.get_by_role("region", name="Body")).to_have_text("<script>alert(1)</script>")
        large = shop_at_work.send("vouchers.expire", b"<b>" * (4 * 1024 * 1024 // 3), delay=HOUR)
        open_view(page, airflow, f"?view=message&id={large.message_id}")
        expect(page.get_by_text("4,194,303 bytes, as text; the first 65,536 are shown")).to_be_visible()
        expect(page.get_by_role("region", name="Body").locator("b")).to_have_count(0)


def test_x08_an_outage_is_told_and_passes(
    chromium: Browser, airflow: AirflowServer, shop_at_work: Broker, shop_dsn: str, postgres: EmbeddedPostgres
) -> None:
    name = str(parse_dsn(shop_dsn)["dbname"])
    with logged_in(chromium, airflow, "op") as page:
        open_view(page, airflow)
        expect(page.get_by_text(re.compile("Due: .* next hour"))).to_be_visible()
        execute(postgres.dsn(), f"alter database {name} allow_connections false")
        try:
            execute(
                postgres.dsn(),
                f"select pg_terminate_backend(pid) from pg_stat_activity where datname = '{name}'",
            )
            told = page.get_by_text("The broker's database does not answer.")
            expect(told).to_be_visible(timeout=SHARED_ANSWER_MS)
            expect(page.get_by_text(re.compile("Due: .* next hour"))).to_be_visible()
        finally:
            execute(postgres.dsn(), f"alter database {name} allow_connections true")
        expect(told).not_to_be_visible(timeout=SHARED_ANSWER_MS)


def test_x08_a_broker_that_never_answered_is_told_and_the_other_can_be_chosen(
    chromium: Browser, airflow: AirflowServer, shop_at_work: Broker
) -> None:
    with logged_in(chromium, airflow, "op") as page:
        open_view(page, airflow, "?broker=unreachable")
        told = page.get_by_role("alert")
        expect(told).to_contain_text("The broker's database does not answer.", timeout=30_000)
        for broker, cure in (("not_upgraded", "duewheel db upgrade"), ("moved", "duewheel db rebase")):
            page.get_by_label("Broker").select_option(broker)
            expect(told).to_contain_text(cure)
        page.get_by_label("Broker").select_option("duewheel_default")
        expect(page.get_by_text(re.compile("Due: .* next hour"))).to_be_visible()


TASKS = """
from datetime import UTC, datetime, timedelta
from airflow.sdk import DAG, task
from duewheel.hooks.broker import DueWheelHook
from duewheel.operators.send import SendDelayMessageOperator

SECRET = {"card": "4711"}

with DAG("shop_tasks") as dag:

    @task.due_messages(topic="orders.placed", group="count", max_messages=3, drain=False)
    def take(messages):
        with DueWheelHook().get_conn() as broker:
            broker.send("orders.timeout", b"", key="in-code", delay=timedelta(hours=2), properties=SECRET)
        return len(messages)

    send = SendDelayMessageOperator(
        task_id="send", topic="orders.timeout", body={}, key="order-of-a-task", delay=timedelta(hours=2)
    )
    send >> take()
"""


def test_x08_a_task_instance_shows_its_messages_and_they_show_it(
    chromium: Browser, airflow: AirflowServer, shop_at_work: Broker
) -> None:
    (airflow.home.dags / "shop_tasks.py").write_text(TASKS)
    assert airflow.home.run("shop_tasks").state == "success"
    _, runs = airflow.call("GET", "/api/v2/dags/shop_tasks/dagRuns")
    (run_id,) = (one["dag_run_id"] for one in runs["dag_runs"])
    tasks = f"/dags/shop_tasks/runs/{quote(run_id)}/tasks"
    with logged_in(chromium, airflow, "viewer") as page:
        page.goto(f"{airflow.url}{tasks}/take")
        page.get_by_role("link", name="Delays").last.click(timeout=30_000)
        received = page.get_by_role("region", name="Received messages")
        expect(received.get_by_role("row")).to_have_count(1 + 3)
        expect(page.get_by_text("None that the broker still knows of.")).to_have_count(1)
        received.get_by_role("link").first.click()
        expect(page.get_by_role("heading", name=re.compile("Message order-"))).to_be_visible()
        page.get_by_role("link", name=re.compile("^airflow:shop_tasks")).first.click()
        expect(page).to_have_url(re.compile(re.escape(tasks).replace("%3A", "(%3A|:)") + "/take"))
        page.goto(f"{airflow.url}{tasks}/send/plugin/duewheel-task")
        sent = page.get_by_role("region", name="Sent messages")
        row = sent.get_by_role("row", name=re.compile("order-of-a-task"))
        expect(row).to_be_visible(timeout=30_000)
        row.get_by_role("link").click()
        expect(page.get_by_role("heading", name="Message order-of-a-task")).to_be_visible()
        page.get_by_role("link", name=re.compile("^airflow:shop_tasks.*.send.-1$")).click()
        expect(page).to_have_url(re.compile("/tasks/send$"))
        (found,) = shop_at_work.find_key("orders.timeout", "in-code")
        open_view(page, airflow, f"?view=message&id={found.message_id}")
        expect(page.get_by_role("link", name=re.compile("^airflow:shop_tasks.*.take.-1$"))).to_be_visible()
        # It names the task to those who may not read what else stands beside the body.
        expect(page.get_by_text("4711")).to_have_count(0)


#: The views, each with its query string and the name of the table in it.
VIEWS = {
    "overview": ("", "Consumer groups"),
    "messages": ("?view=messages&topic=orders.timeout&key=order-1", "Messages"),
    "groups": ("?view=groups", "Consumer groups"),
    "dead-letters": ("?view=dead&group=ship", "Dead letters"),
    "topics": ("?view=topics", "Topics"),
    "retries": ("?view=retries", "Retries"),
    "schedules": ("?view=schedules", "Schedules"),
}


def nameless(page: Page) -> list[str]:
    """What a screen reader would announce without a name, of what has to have one."""
    tree = page.locator("[data-page=duewheel]").aria_snapshot()
    kinds = "button|link|textbox|combobox|checkbox|spinbutton|table|region|img|navigation|heading"
    found: list[str] = re.findall(rf"^ *- (?:{kinds})(?: \[[^\]]*\])*:?$", tree, re.MULTILINE)
    return found


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_x08_each_view_fits_its_window_and_keeps_nobody_out(
    chromium: Browser,
    airflow: AirflowServer,
    shop_at_work: Broker,
    wheel: None,
    tmp_path: Path,
    dark: bool,
    size: Any,
) -> None:
    found = shop_at_work.dead_letters("ship", redriven=False)[-1]
    views = {**VIEWS, "message": (f"?view=message&id={found.message_id}", "History")}
    with logged_in(chromium, airflow, "op", dark=dark, size=size) as page:
        open_view(page, airflow)
        for name, (query, table) in views.items():
            follow(page, query)
            expect(page.get_by_role("region", name=table, exact=True)).to_be_visible()
            expect(page.locator(".uplot")).to_have_count(2 if name == "overview" else 0)
            overflow = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
            assert overflow <= 0, f"{name} is {overflow} pixels wider than its window"
            assert page.evaluate("document.documentElement.classList.contains('dark')") is dark
            assert findings(page, "[data-page=duewheel]") == [], name
            assert nameless(page) == [], name
            if name == "messages":
                choose_all(page, that_match=True)
                assert findings(page, "[data-page=duewheel]") == [], name
                page.get_by_role("button", name="Reschedule all").click()
                expect(page.get_by_role("alertdialog").get_by_text("wait and match now")).to_be_visible()
                assert findings(page, "[role=alertdialog]") == []
                page.keyboard.press("Escape")
                expect(page.get_by_role("alertdialog")).to_have_count(0)
            picture = f"{name}-{'narrow' if size is NARROW else 'wide'}-{'dark' if dark else 'light'}"
            take_picture(page, picture, tmp_path)


def test_x08_a_hundred_topics_long_keys_and_binary_bodies_fit_a_narrow_window(
    chromium: Browser, airflow: AirflowServer, shop_at_work: Broker
) -> None:
    execute(
        shop_at_work.dsn,
        "select duewheel.create_topic('many-' || lpad(n::text, 2, '0')) from generate_series(0, 99) n",
    )
    key = "K" * 255
    sent = shop_at_work.send("many-00", b"\x00\xff<b>", delay=HOUR, key=key, tag="T" * 127)
    with logged_in(chromium, airflow, "op", size=NARROW) as page:
        open_view(page, airflow, "?view=topics")
        topics = page.get_by_role("region", name="Topics")
        expect(topics.get_by_role("row")).to_have_count(1 + 50)
        # Other tests of the run have made topics, too.
        names = overview.topic_names(shop_at_work, None, 1_000)
        for first in names[50 : names.index("many-99") + 1 : 50]:
            page.get_by_role("button", name="Next page").click()
            expect(topics.get_by_text(first, exact=True)).to_be_visible()
        expect(topics.get_by_text("many-99")).to_be_visible()
        page.get_by_role("button", name="Previous page").click()
        expect(topics.get_by_text("many-99")).to_have_count(0)
        page.get_by_role("button", name="Next page").click()
        expect(topics.get_by_text("many-99")).to_be_visible()
        for view in ("messages&topic=many-00", f"message&id={sent.message_id}", ""):
            follow(page, f"?view={view}")
            expect(page.get_by_text(key).first if view else page.locator(".uplot").first).to_be_visible()
            assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0, view
            if view.startswith("message&"):
                expect(page.get_by_role("region", name="Body")).to_have_text("00 ff 3c 62 3e")


def test_x08_a_slow_network_shows_no_stale_answer_and_an_old_tab_says_that_it_is_old(
    chromium: Browser, airflow: AirflowServer, shop_at_work: Broker
) -> None:
    with logged_in(chromium, airflow, "op") as page:
        held: list[Route] = []
        page.route(re.compile("key_prefix=order-11(&|$)"), lambda route: held.append(route))
        # On a busy machine some of them are released by now.
        open_view(page, airflow, "?view=messages&topic=orders.timeout&key=order-11&state=all")
        expect(page.get_by_role("status", name="Loading")).to_be_visible()
        field = page.locator("input[name=key]")
        field.fill("order-222")
        field.press("Enter")
        expect(page.get_by_role("row", name=re.compile("order-222 "))).to_be_visible()
        (late,) = held
        late.fulfill(json={"now_at": "2026-01-01T00:00:00Z", "messages": [], "next": None})
        # The page was there for the late answer when it had one of its own after it.
        with page.expect_response(re.compile("key_prefix=order-33")):
            field.fill("order-33")
            field.press("Enter")
        expect(page.get_by_role("row", name=re.compile("order-33 "))).to_be_visible()
        expect(page.get_by_text("No messages match.")).to_have_count(0)

        def upgraded(route: Route) -> None:
            response = route.fetch()
            route.fulfill(response=response, headers={**response.headers, "duewheel-page": "a newer one"})

        page.route(re.compile("/leases"), upgraded)
        page.get_by_role("link", name="Leases").click()
        told = page.get_by_role("alert")
        expect(told).to_contain_text("duewheel was upgraded since this page was loaded")
        expect(told.get_by_role("button", name="Load again")).to_be_visible()
        # An answer that this page does not understand takes nothing else with it.
        page.route(re.compile("/retries"), lambda route: route.fulfill(json={"of_another": "shape"}))
        page.get_by_role("link", name="Retries").click()
        expect(page.get_by_text("This view cannot be shown.")).to_be_visible()
        page.get_by_role("link", name="Schedules").click()
        expect(page.get_by_role("row", name=re.compile("clean-up"))).to_be_visible()
