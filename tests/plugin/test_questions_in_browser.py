"""What is asked before an action on all names every criterion, and asking leaves no trace (X24)."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect
from tests.plugin.airflow_server import AirflowServer
from tests.plugin.browsing import choose_all, logged_in, open_view

from duewheel.store import RetryPolicy
from duewheel.store.broker import Broker
from duewheel.store.values.limits import LONGEST_WAIT

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.needs("chromium")]

MINUTE = timedelta(minutes=1)
NAME = "questioned"
DUE = datetime(2030, 1, 5, 10, tzinfo=UTC)
DIED = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(hours=3)
#: More than a page has, so that all that match can be chosen.
MATCHING = 210


@pytest.fixture(scope="module")
def questioned(shop: Broker, shop_dsn: str) -> Broker:
    """Messages and dead letters of which each criterion leaves one out."""
    shop.create_topic(NAME, max_delay=timedelta(days=3_650))
    matching = {"body": b"", "key": "c-1", "tag": "paid", "deliver_at": DUE}
    others = (
        {"key": "d-1"},
        {"tag": "unpaid"},
        {"deliver_at": DUE - MINUTE},
        {"deliver_at": DUE + MINUTE},
    )
    shop.send_many(NAME, [matching] * MATCHING + [matching | other for other in others])
    shop.create_topic("died", message_type="NORMAL", queues=1)
    for key, reason, number, at in (
        ("c-1", "HTTP 503", MATCHING, DIED),
        ("d-1", "HTTP 503", 1, DIED),
        ("c-2", "HTTP 503: poison", 1, DIED),
        ("c-3", "HTTP 503", 1, DIED - MINUTE),
        ("c-4", "HTTP 503", 1, DIED + MINUTE),
    ):
        with Broker(shop_dsn, clock=partial(datetime.fromtimestamp, at.timestamp(), UTC)) as past:
            past.send_many("died", [{"body": b"", "key": key}] * number)
            consumer = past.consumer("died", NAME, retry=RetryPolicy(0, (MINUTE,)))
            consumer.nack(consumer.receive(max_messages=1_000, wait=LONGEST_WAIT), reason=reason)
    return shop


def asked(page: Page, action: str) -> Locator:
    """The dialog of an action on all."""
    page.get_by_role("button", name=action, exact=True).click()
    return page.get_by_role("alertdialog")


def in_the_address(at: datetime) -> str:
    """An instant with its zone."""
    return f"{at:%Y-%m-%dT%H:%M:%S.000Z}"


def as_read(at: datetime) -> str:
    """An instant as a dialog has it."""
    return f"{at:%Y-%m-%d %H:%M:%S}.000"


def audited(airflow: AirflowServer) -> int:
    """How many lines of the audit log speak of the page's actions."""
    _, logs = airflow.call("GET", "/api/v2/eventLogs?limit=1000&order_by=-when")
    return sum(line["event"].startswith("duewheel.") for line in logs["event_logs"])


def test_x24_each_criterion_of_messages_is_named_and_nothing_is_left_of_a_question(
    chromium: Browser, airflow: AirflowServer, questioned: Broker
) -> None:
    with logged_in(chromium, airflow, "op") as page:
        before = audited(airflow)
        span = f"from={in_the_address(DUE)}&until={in_the_address(DUE + MINUTE)}"
        open_view(page, airflow, f"?view=messages&topic={NAME}&key=c-&tag=paid&{span}")
        choose_all(page, that_match=True)
        for action in ("Recall all", "Reschedule all", "Deliver all now"):
            dialog = asked(page, action)
            expect(dialog.get_by_text(f"{MATCHING} messages wait and match now.")).to_be_visible()
            expect(dialog.get_by_role("listitem")).to_have_text(
                [
                    f"on topic {NAME}",
                    "with a key that begins with c-",
                    "with the tag paid",
                    f"due from {as_read(DUE)} in UTC on",
                    f"due before {as_read(DUE + MINUTE)} in UTC",
                ]
            )
            page.keyboard.press("Escape")
            expect(dialog).to_have_count(0)
        assert audited(airflow) == before


def test_x24_each_criterion_of_dead_letters_is_named_and_nothing_is_left_of_a_question(
    chromium: Browser, airflow: AirflowServer, questioned: Broker
) -> None:
    span = f"from={in_the_address(DIED)}&until={in_the_address(DIED + MINUTE)}"
    times = (as_read(DIED), as_read(DIED + MINUTE))
    with logged_in(chromium, airflow, "op") as page:
        before = audited(airflow)
        open_view(page, airflow, f"?view=dead&group={NAME}&topic=died&key=c-&lacks=poison&{span}")
        choose_all(page, that_match=True)
        dialog = asked(page, "Redrive all")
        expect(dialog.get_by_text(f"{MATCHING} dead letters that match to be sent again.")).to_be_visible()
        expect(dialog).to_contain_text(
            f"All dead letters of {NAME}, on topic died, whose key begins with c-, whose reason does not"
            f" contain poison, dead from {times[0]} in UTC on, dead before {times[1]} in UTC, are sent again"
        )
        page.keyboard.press("Escape")
        expect(dialog).to_have_count(0)
        open_view(page, airflow, f"?view=dead&group={NAME}&topic=died&{span}")
        row = page.get_by_role("region", name="Reasons").get_by_role("row", name=re.compile("^HTTP 503 2"))
        for action, done in (
            ("Redrive", "sent again, each once"),
            ("Discard", "discarded, and never sent again"),
        ):
            row.get_by_role("button", name=action).click()
            expect(dialog.get_by_text(f"{MATCHING + 1} dead letters have it.")).to_be_visible()
            expect(dialog).to_contain_text(
                f"All dead letters of {NAME} on topic died with this reason,"
                f" dead from {times[0]} before {times[1]} in UTC, are {done}:"
            )
            expect(dialog.get_by_text("HTTP 503", exact=True)).to_be_visible()
            page.keyboard.press("Escape")
            expect(dialog).to_have_count(0)
        assert audited(airflow) == before
