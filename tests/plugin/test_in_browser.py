"""The page in a real browser against a real Airflow: what an operator of a shop sees and does (X08)."""

from __future__ import annotations

import gzip
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
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
    WRITES_PICTURES,
    choose_all,
    close,
    findings,
    follow,
    logged_in,
    open_view,
    take_picture,
)

from duewheel.embedded.postgres import EmbeddedPostgres
from duewheel.plugin.bundle import _BUILT
from duewheel.store import RetryPolicy
from duewheel.store.broker import Broker
from duewheel.store.operations import statistics
from duewheel.store.values.limits import LONGEST_WAIT

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

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
    shop.create_schedule("clean-up", "orders.timeout", b"", cron="0 5 * * *", timezone="Europe/Berlin")
    return shop


@pytest.fixture(scope="module")
def wheel(shop_at_work: Broker, shop_dsn: str) -> Iterator[None]:
    """A wheel that turns in a process of its own."""
    command = [sys.executable, "-m", "duewheel.cli", "wheel", "run", "--dsn", shop_dsn]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        yield
        process.kill()


def tab_to(page: Page, wanted: Locator) -> None:
    """Go there as one does without a mouse."""
    for _ in range(80):
        if wanted.evaluate("one => one === document.activeElement"):
            return
        page.keyboard.press("Tab")
    pytest.fail(f"no way leads to {wanted} by the Tab key")


def test_x08_the_script_is_small() -> None:
    assert len(gzip.compress(_BUILT.read_bytes())) < 85_000


def test_x08_an_operator_without_a_mouse_recalls_an_order_by_key(
    chromium: Browser, airflow: AirflowServer, shop_at_work: Broker
) -> None:
    with logged_in(chromium, airflow, "op") as page:
        page.goto(airflow.url)
        delays = page.get_by_role("link", name="Delays")
        expect(delays).to_be_visible(timeout=30_000)
        tab_to(page, delays)
        page.keyboard.press("Enter")
        expect(page.get_by_text(re.compile("Due: .*, 1 h before and after now"))).to_be_visible()
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
        page.go_back()
        for name, value in (("topic", "orders.timeout"), ("key", "")):
            expect(page.locator(f"input[name={name}]")).to_have_value(value)
        page.go_forward()
        expect(page.locator("input[name=key]")).to_have_value("order-77")
    (found,) = shop_at_work.find_key("orders.timeout", "order-77")
    assert found.recalled


@pytest.mark.long
def test_x12_an_edited_dead_letter_is_sent_and_names_the_user(
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
        page.get_by_role("row", name=re.compile("typo ")).get_by_role("link").last.click()
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


@pytest.mark.long
def test_x08_an_outage_is_told_and_passes(
    chromium: Browser, airflow: AirflowServer, night_dsn: str, postgres: EmbeddedPostgres
) -> None:
    """Of a broker with little in it: the page looks at it often."""
    name = str(parse_dsn(night_dsn)["dbname"])
    with logged_in(chromium, airflow, "op") as page:
        open_view(page, airflow, "?broker=night")
        expect(page.get_by_text(re.compile("Due: .* before and after now"))).to_be_visible()
        execute(postgres.dsn(), f"alter database {name} allow_connections false")
        try:
            execute(
                postgres.dsn(),
                f"select pg_terminate_backend(pid) from pg_stat_activity where datname = '{name}'",
            )
            told = page.get_by_role("alert").get_by_text("The broker's database does not answer.")
            expect(told).to_be_visible(timeout=SHARED_ANSWER_MS)
            expect(page.get_by_text(re.compile("Due: .* before and after now"))).to_be_visible()
        finally:
            execute(postgres.dsn(), f"alter database {name} allow_connections true")
        expect(told).not_to_be_visible(timeout=SHARED_ANSWER_MS)


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


@pytest.mark.long
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


#: The views, each with its query string and the name of a region in it.
VIEWS = {
    "overview": ("", "State of the broker"),
    "messages": ("?view=messages&topic=orders.timeout&key=order-1", "Messages"),
    "groups": ("?view=groups", "Consumer groups"),
    "dead-letters": ("?view=dead&group=ship", "Dead letters"),
    "topics": ("?view=topics", "Topics"),
    "retries": ("?view=retries", "Retries"),
    "schedules": ("?view=schedules", "Schedules"),
    "topic": ("?view=topic&topic=orders.placed", "Consumer groups"),
    "group": ("?view=group&group=ship&topic=orders.placed", "Consumer groups"),
}


#: The lists of facts whose names, or whose values, do not begin at one left edge.
OUT_OF_LINE = """
    [...document.querySelectorAll('[data-page=duewheel] dl')].filter((list) =>
        ['dt', 'dd'].some((kind) => new Set([...list.querySelectorAll(kind)].map(
            (one) => Math.round(one.getBoundingClientRect().left))).size > 1)
    ).map((list) => list.textContent)
"""


def nameless(page: Page) -> list[str]:
    """What a screen reader would announce without a name, of what has to have one."""
    tree = page.locator("[data-page=duewheel]").aria_snapshot()
    kinds = "button|link|textbox|combobox|checkbox|spinbutton|table|region|img|navigation|heading"
    found: list[str] = re.findall(rf"^ *- (?:{kinds})(?: \[[^\]]*\])*:?$", tree, re.MULTILINE)
    return found


@pytest.mark.parametrize(
    ("size", "dark"),
    [
        pytest.param(WIDE, False, id="wide-light"),
        pytest.param(NARROW, True, id="narrow-dark", marks=pytest.mark.long),
        # The other two are for pictures alone: each size and each theme is in one of these.
        *([pytest.param(WIDE, True, id="wide-dark")] if WRITES_PICTURES else []),
        *([pytest.param(NARROW, False, id="narrow-light")] if WRITES_PICTURES else []),
    ],
)
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
            expect(page.get_by_role("img", name="Messages by topic and time")).to_have_count(
                1 if name in ("overview", "topic") else 0
            )
            overflow = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
            assert overflow <= 0, f"{name} is {overflow} pixels wider than its window"
            assert page.evaluate(OUT_OF_LINE) == [], name
            assert page.evaluate("document.documentElement.classList.contains('dark')") is dark
            assert findings(page, "[data-page=duewheel]") == [], name
            assert nameless(page) == [], name
            if name == "messages":
                # Cards have no row of column heads that would explain the box.
                words = page.get_by_text("Select all shown", exact=True)
                expect(words).to_be_visible(visible=size is NARROW)
                choose_all(page, that_match=True)
                assert findings(page, "[data-page=duewheel]") == [], name
                page.get_by_role("button", name="Reschedule all").click()
                expect(page.get_by_role("alertdialog").get_by_text("wait and match now")).to_be_visible()
                assert findings(page, "[role=alertdialog]") == []
                page.keyboard.press("Escape")
                expect(page.get_by_role("alertdialog")).to_have_count(0)
            picture = f"{name}-{'narrow' if size is NARROW else 'wide'}-{'dark' if dark else 'light'}"
            take_picture(page, picture, tmp_path)


@pytest.mark.long
def test_x08_many_topics_long_keys_and_bytes_fit_a_narrow_window(
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
        # Cards have no head.
        expect(topics.get_by_role("row")).to_have_count(50)
        # Other tests of the run have made topics, too.
        names = statistics.topic_names(shop_at_work, None, 1_000)
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
            axis = page.get_by_role("img", name="Messages by topic and time")
            expect(page.get_by_text(key).first if view else axis).to_be_visible()
            assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0, view
            if view.startswith("message&"):
                expect(page.get_by_role("region", name="Body")).to_have_text("00 ff 3c 62 3e")
