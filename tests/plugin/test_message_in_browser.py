"""What an operator does from the page of one message (X08)."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect
from tests.plugin.airflow_server import AirflowServer
from tests.plugin.browsing import close, logged_in, open_view

from duewheel.store import RetryPolicy
from duewheel.store.broker import Broker
from duewheel.store.values.limits import LONGEST_WAIT

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.needs("chromium")]

HOUR = timedelta(hours=1)


def test_x08_a_message_is_released_from_its_lease_and_retried_now_on_its_own_page(
    chromium: Browser, airflow: AirflowServer, shop: Broker
) -> None:
    shop.create_topic("one-hung", message_type="NORMAL", queues=1)
    consumer = shop.consumer("one-hung", "one-hung", retry=RetryPolicy(3, (HOUR,)))
    held, failed = (shop.send("one-hung", b"", key=key).message_id for key in ("held", "failed"))
    consumer.receive(1, invisible=HOUR, wait=LONGEST_WAIT)
    consumer.nack(consumer.receive(1, wait=LONGEST_WAIT), reason="no paper")
    with logged_in(chromium, airflow, "op") as page:
        dialog = page.get_by_role("alertdialog")
        for message_id, button, answer in (
            (held, "Release", "The lease is released: 1 message sent on."),
            (failed, "Retry now", "1 due now"),
        ):
            open_view(page, airflow, f"?view=message&id={message_id}")
            page.get_by_role("button", name=button, exact=True).click()
            dialog.get_by_role("button", name=button, exact=True).click()
            expect(dialog.get_by_text(answer)).to_be_visible()
            close(dialog)
    came = [message for _ in range(2) for message in consumer.receive(2)]
    assert {(message.key, message.attempt) for message in came} == {("held", 2), ("failed", 2)}


def test_x08_instants_have_their_milliseconds_on_hover_only(
    chromium: Browser, airflow: AirflowServer, shop: Broker
) -> None:
    shop.create_topic("one-precise")
    receipt = shop.send("one-precise", b"", delay=HOUR)
    due = f"{receipt.deliver_at:%Y-%m-%d %H:%M:%S}"
    exact = f"{due}.{receipt.deliver_at.microsecond // 1000:03} UTC"
    with logged_in(chromium, airflow, "viewer") as page:
        open_view(page, airflow, "?view=messages&topic=one-precise")
        cell = page.get_by_role("region", name="Messages", exact=True).get_by_title(exact)
        expect(cell).to_contain_text(due)
        expect(page.get_by_text(f"{due}.")).to_have_count(0)


def test_x08_a_pasted_id_opens_its_message_and_the_body_is_copied_as_it_is_shown(
    chromium: Browser, airflow: AirflowServer, shop: Broker
) -> None:
    shop.create_topic("one-copied")
    sent = shop.send("one-copied", {"price": "1.10"}, key="copied", delay=HOUR)
    with logged_in(chromium, airflow, "op") as page:
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        open_view(page, airflow, "?view=messages")
        field = page.locator("input[name=id]")
        field.fill(sent.message_id[:-1])
        expect(page.get_by_role("heading", name="Messages", exact=True)).to_be_visible()
        field.fill(f" {sent.message_id}\t")
        expect(page.get_by_role("heading", name="Message copied")).to_be_visible()
        page.get_by_role("button", name="Copy").click()
        expect(page.get_by_role("button", name="Copied")).to_be_visible()
        copied = page.evaluate("navigator.clipboard.readText()")
        assert copied == page.get_by_role("region", name="Body").inner_text()
        assert json.loads(copied) == {"price": "1.10"}
