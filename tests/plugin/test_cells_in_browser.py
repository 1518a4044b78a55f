"""Names as long as the broker takes stay within their cells (X08)."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect
from tests.plugin.airflow_server import AirflowServer
from tests.plugin.browsing import NARROW, WIDE, follow, logged_in, open_view

from duewheel.store import RetryPolicy
from duewheel.store.broker import Broker
from duewheel.store.values.limits import LONGEST_WAIT

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.long, pytest.mark.needs("chromium")]

HOUR = timedelta(hours=1)
LEAST_WIDE = {"width": 1280, "height": 900}
TOPIC, GROUP, KEY, TAG, REASON = "T" * 125, "G" * 127, "K" * 255, "t" * 127, "R" * 500
OTHER = f"{TOPIC}-2"
OF_BOTH = f"group={GROUP}&topic={TOPIC}"
#: The views that show them, each with the name of a table in it.
VIEWS = {
    "?view=topics": "Topics",
    f"?view=messages&topic={TOPIC}&state=all": "Messages",
    "?view=groups&sort=dead": "Consumer groups",
    f"?view=leases&{OF_BOTH}": "Leases",
    f"?view=retries&group={GROUP}&topic={OTHER}": "Retries",
    f"?view=dead&{OF_BOTH}": "Dead letters",
    f"?topic={TOPIC}": "Lateness of release by topic",
}
#: The cells beyond whose sides some of their text is painted. A name that is cut short there is not painted.
OVERPRINTED = """
() => [...document.querySelectorAll("[data-page=duewheel] :is(td, th)")].filter((cell) => {
  const own = cell.getBoundingClientRect();
  const range = document.createRange();
  range.selectNodeContents(cell);
  return [...range.getClientRects()].some((one) => one.left < own.left - 1 || one.right > own.right + 1);
}).map((cell) => cell.outerHTML.slice(0, 300))
"""
#: Words of a usual length that stand in more than one line.
BROKEN_WORDS = """
() => [...document.querySelectorAll("[data-page=duewheel] :is(td, th)")].flatMap((cell) => {
  const found = [];
  const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    for (const word of texts.currentNode.data.matchAll(/[\\w,]+/g)) {
      const range = document.createRange();
      range.setStart(texts.currentNode, word.index);
      range.setEnd(texts.currentNode, word.index + word[0].length);
      const lines = new Set([...range.getClientRects()].map((one) => Math.round(one.top)));
      if (word[0].length <= 16 && lines.size > 1) found.push(word[0]);
    }
  }
  return found;
})
"""
#: Lists whose rows have more than their room, with how much more.
CUT_OFF = """
() => [...document.querySelectorAll("[data-page=duewheel] [role=region]")]
  .filter((one) => one.scrollWidth > one.clientWidth + 1)
  .map((one) => one.getAttribute("aria-label"))
"""
#: What makes the page itself wider than its window: a list that has too little room scrolls by itself.
BEYOND_THE_PAGE = """
() => {
  const page = document.querySelector("[data-page=duewheel]");
  if (page.scrollWidth <= page.clientWidth + 1) return [];
  const right = page.getBoundingClientRect().right;
  return [...page.querySelectorAll("*")]
    .filter((one) => one.getBoundingClientRect().right > right + 1 && !one.closest("[role=region]"))
    .map((one) => one.outerHTML.slice(0, 300));
}
"""


@pytest.fixture(scope="module")
def wide_names(shop: Broker) -> Broker:
    """A dead letter, a retry and a lease of which every name is as long as can be."""
    for topic in (TOPIC, OTHER):
        shop.create_topic(topic, message_type="NORMAL", queues=1)
        shop.send_many(topic, [{"body": b"", "key": KEY, "tag": TAG}] * 2)
    for topic, retry in ((TOPIC, RetryPolicy(0, (HOUR,))), (OTHER, RetryPolicy(3, (HOUR,)))):
        consumer = shop.consumer(topic, GROUP, name="C" * 127, retry=retry)
        consumer.nack(consumer.receive(1, wait=LONGEST_WAIT), reason=REASON)
        consumer.receive(1, invisible=HOUR, wait=LONGEST_WAIT)
    return shop


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_x08_no_name_is_painted_over_its_neighbour(
    chromium: Browser, airflow: AirflowServer, wide_names: Broker, size: object
) -> None:
    with logged_in(chromium, airflow, "op", size=size) as page:
        open_view(page, airflow)
        for query, table in VIEWS.items():
            follow(page, query)
            rows = page.get_by_role("region", name=table, exact=True).get_by_role("row")
            expect(rows.filter(has_text=TOPIC).first).to_be_visible()
            assert page.evaluate(OVERPRINTED) == [], table


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_x08_no_name_makes_the_page_wider_than_its_window(
    chromium: Browser, airflow: AirflowServer, wide_names: Broker, size: object
) -> None:
    (letter,) = wide_names.dead_letters(GROUP, redriven=False)
    views = {
        f"?view=message&id={letter.message_id}": "History",
        f"?view=topic&topic={TOPIC}": "Settings",
        f"?view=group&{OF_BOTH}": "Dead letters by topic, the oldest first",
        f"?view=dead&{OF_BOTH}": "Dead letters by topic, the oldest first",
    }
    with logged_in(chromium, airflow, "op", size=size) as page:
        open_view(page, airflow)
        for query, heading in views.items():
            follow(page, query)
            expect(page.get_by_role("heading", name=heading, exact=True)).to_be_visible()
            assert page.evaluate(BEYOND_THE_PAGE) == [], query


@pytest.mark.parametrize("size", [LEAST_WIDE, NARROW], ids=["wide", "narrow"])
def test_x08_no_list_breaks_a_word_or_is_cut_off(
    chromium: Browser, airflow: AirflowServer, night_dsn: str, size: object
) -> None:
    with Broker(night_dsn) as broker:
        topic, group = "payments.reminder_of_withdrawal", "payments-reminder-of-withdrawal"
        broker.create_topic(topic, message_type="NORMAL", queues=1)
        broker.send_many(topic, [{"body": b"", "key": "customer-4711"}] * 10_003)
        consumer = broker.consumer(topic, group, retry=RetryPolicy(1, (HOUR,)))
        consumer.nack(consumer.receive(2, wait=LONGEST_WAIT), reason="409 Conflict")
        consumer.receive(1, invisible=HOUR, wait=LONGEST_WAIT)
    views = {"groups&sort=lag": "Consumer groups", "leases": "Leases", "retries": "Retries"}
    with logged_in(chromium, airflow, "op", size=size) as page:
        open_view(page, airflow, "?broker=night")
        for view, table in views.items():
            follow(page, f"?broker=night&view={view}")
            rows = page.get_by_role("region", name=table, exact=True).get_by_role("row")
            expect(rows.filter(has_text=topic).first).to_be_visible()
            assert page.evaluate(BROKEN_WORDS) == [], view
            assert page.evaluate(CUT_OFF) == [], view
