"""Two operators on one selection, and a tab that is closed in the midst: nothing is done twice or lost."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect
from tests.plugin.airflow_server import AirflowServer
from tests.plugin.browsing import choose, choose_all, close, logged_in, open_view

from duewheel.store import RetryPolicy
from duewheel.store.broker import Broker
from duewheel.store.values.limits import LONGEST_WAIT

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Dialog, Locator, Page, Route

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.needs("chromium")]

HOUR = timedelta(hours=1)
BLACK_FRIDAY = datetime(2030, 11, 29, tzinfo=UTC)


def ask(page: Page, action: str) -> Locator:
    """Open the question before an action."""
    page.get_by_role("group", name="Chosen").get_by_role("button", name=action, exact=True).click()
    return page.get_by_role("alertdialog")


def number_in(dialog: Locator, words: str) -> int:
    """The number before these words, once the dialog tells it."""
    told = dialog.get_by_role("status")
    expect(told).to_contain_text(re.compile(rf"[\d,]+ {words}"))
    found = re.search(rf"([\d,]+) {words}", told.inner_text())
    assert found is not None
    return int(found[1].replace(",", ""))


class Held:
    """Requests of a page that act, from one on, which wait until they are let go."""

    def __init__(self, page: Page, path: str, after: int) -> None:
        self.routes: list[Route] = []
        self._seen = 0
        self._after = after
        page.route(re.compile(path), self._take)

    def _take(self, route: Route) -> None:
        if not json.loads(route.request.post_data or "{}").get("dry_run", False):
            self._seen += 1
            if self._seen > self._after:
                self.routes.append(route)
                return
        route.continue_()


def test_x08_of_two_operators_on_one_selection_the_second_reads_what_the_first_did(
    chromium: Browser, airflow: AirflowServer, shop: Broker
) -> None:
    shop.create_topic("both")
    shop.send_many("both", [{"body": b"", "delay": HOUR, "key": f"b-{n}"} for n in range(3)])
    with logged_in(chromium, airflow, "op") as first, logged_in(chromium, airflow, "admin") as second:
        for page in (first, second):
            open_view(page, airflow, "?view=messages&topic=both")
            choose_all(page)
        recalling, moving = ask(first, "Recall"), ask(second, "Reschedule")
        recalling.get_by_role("button", name="Recall").click()
        expect(recalling.get_by_role("status")).to_have_text("3 recalled: never delivered")
        moving.get_by_role("button", name="Reschedule").click()
        expect(moving.get_by_role("status")).to_contain_text("3 not found: recalled before")
        close(moving)
        # The list is read anew, and nothing is left to choose.
        expect(second.get_by_text("No messages match.")).to_be_visible()
    assert shop.list_messages("both").messages == ()


def test_x24_two_operators_who_recall_all_recall_each_message_once(
    chromium: Browser, airflow: AirflowServer, shop: Broker
) -> None:
    shop.create_topic("both-all")
    shop.send_many("both-all", [{"body": b"", "delay": HOUR}] * 25_000)
    with logged_in(chromium, airflow, "op") as first, logged_in(chromium, airflow, "admin") as second:
        dialogs = []
        for page in (first, second):
            open_view(page, airflow, "?view=messages&topic=both-all")
            choose_all(page, that_match=True)
            dialog = ask(page, "Recall all")
            expect(dialog).to_contain_text("25,000 messages wait and match now.")
            dialog.locator("input[name=number]").fill("25000")
            dialogs.append(dialog)
        # The first one is in the midst of it when the second one begins.
        held = Held(first, "/recall-matching", after=1)
        with first.expect_request(re.compile("/recall-matching")):
            dialogs[0].get_by_role("button", name="Recall all").click()
        expect(dialogs[0].get_by_role("status")).to_contain_text("10,000 recalled …")
        dialogs[1].get_by_role("button", name="Recall all").click()
        by_second = number_in(dialogs[1], "recalled: never delivered")
        assert by_second == 15_000
        for route in held.routes:
            route.continue_()
        first.unroute_all()
        assert number_in(dialogs[0], "recalled: never delivered") == 10_000


def test_x12_two_operators_who_redrive_one_reason_send_each_dead_letter_once(
    chromium: Browser, airflow: AirflowServer, shop: Broker
) -> None:
    shop.create_topic("both-dead", message_type="NORMAL")
    shop.send_many("both-dead", [{"body": b""}] * 900)
    consumer = shop.consumer("both-dead", "both-dead", retry=RetryPolicy(0, (HOUR,)))
    consumer.nack(consumer.receive(max_messages=900, wait=LONGEST_WAIT), reason="HTTP 503")
    with logged_in(chromium, airflow, "op") as first, logged_in(chromium, airflow, "admin") as second:
        dialogs = []
        for page in (first, second):
            open_view(page, airflow, "?view=dead&group=both-dead")
            page.get_by_role("region", name="Reasons").get_by_role("button", name="Redrive").click()
            dialog = page.get_by_role("alertdialog")
            expect(dialog).to_contain_text("900 dead letters have it.")
            dialogs.append(dialog)
        held = Held(first, "/dead-letters/redrive", after=1)
        dialogs[0].get_by_role("button", name="Redrive").click()
        expect(dialogs[0].get_by_role("status")).to_contain_text("500 sent again …")
        dialogs[1].get_by_role("button", name="Redrive").click()
        expect(dialogs[1].get_by_role("status")).to_have_text("400 sent again.")
        for route in held.routes:
            route.continue_()
        expect(dialogs[0].get_by_role("status")).to_have_text("500 sent again.")
    assert len(consumer.receive(max_messages=1_000)) == 900


@pytest.mark.parametrize(("action", "done"), [("Redrive", "sent again"), ("Discard", "discarded")])
def test_x12_of_two_operators_on_one_selection_of_dead_letters_the_second_reads_what_the_first_did(
    chromium: Browser, airflow: AirflowServer, shop: Broker, action: str, done: str
) -> None:
    name = f"both-chosen-{action}"
    shop.create_topic(name, message_type="NORMAL")
    consumer = shop.consumer(name, name, retry=RetryPolicy(0, (HOUR,)))
    shop.send_many(name, [{"body": b""}] * 3)
    consumer.nack(consumer.receive(max_messages=3, wait=LONGEST_WAIT), reason="HTTP 503")
    with logged_in(chromium, airflow, "op") as first, logged_in(chromium, airflow, "admin") as second:
        for page in (first, second):
            open_view(page, airflow, f"?view=dead&group={name}")
        letters = first.get_by_role("region", name="Dead letters", exact=True)
        choose(letters.get_by_role("checkbox").nth(1))
        choose_all(second)
        one, all_three = ask(first, action), ask(second, action)
        one.get_by_role("button", name=action).click()
        expect(one.get_by_role("status")).to_have_text(f"1 {done}.")
        all_three.get_by_role("button", name=action).click()
        told = all_three.get_by_role("status")
        expect(told).to_contain_text(f"2 {done}.")
        expect(told).to_contain_text("1 not: sent again or discarded by others just now")
    assert shop.dead_letters(name, redriven=False) == []


def test_x08_where_no_answer_arrives_it_is_not_said_that_nothing_was_done(
    chromium: Browser, airflow: AirflowServer, shop: Broker
) -> None:
    shop.create_topic("unheard")
    shop.send_many("unheard", [{"body": b"", "delay": HOUR}] * 2)

    def lose(route: Route) -> None:
        route.fetch()
        route.abort()

    with logged_in(chromium, airflow, "op") as page:
        open_view(page, airflow, "?view=messages&topic=unheard")
        choose_all(page)
        page.route(re.compile("/messages/recall$"), lose)
        dialog = ask(page, "Recall")
        dialog.get_by_role("button", name="Recall").click()
        told = dialog.get_by_role("status")
        expect(told).to_contain_text("2 outcome unknown: check the list")
        expect(told).to_contain_text("API server does not answer")
        close(dialog)
        # It was carried out, and the list is read anew.
        expect(page.get_by_text("No messages match.")).to_be_visible()
        page.route(re.compile("/groups/pause$"), lose)
        shop.consumer("unheard", "unheard")
        open_view(page, airflow, "?view=groups&sort=dead")
        page.get_by_role("row", name=re.compile("^unheard ")).get_by_role("button", name="Pause").click()
        dialog.get_by_role("button", name="Pause").click()
        expect(told).to_contain_text("Whether it was done is not known.")


@pytest.mark.timeout(900)
def test_x08_what_a_closed_tab_left_is_done_by_the_next(
    chromium: Browser, airflow: AirflowServer, shop: Broker
) -> None:
    shop.create_topic("closed", max_delay=timedelta(days=3_650))
    shop.send_many("closed", [{"body": b"", "delay": HOUR, "key": f"c-{n}"} for n in range(12_000)])

    def move_all(page: Page) -> Locator:
        open_view(page, airflow, "?view=messages&topic=closed")
        choose_all(page, that_match=True)
        dialog = ask(page, "Reschedule all")
        dialog.locator("input[name=deliver_at]").fill("2030-11-29T00:00")
        return dialog

    with logged_in(chromium, airflow, "op") as page:
        tab = page.context.new_page()
        dialog = move_all(tab)
        expect(dialog).to_contain_text("12,000 messages wait and match now.")
        dialog.locator("input[name=number]").fill("12000")
        held = Held(tab, "/reschedule-matching", after=1)
        dialog.get_by_role("button", name="Reschedule all").click()
        expect(dialog.get_by_role("status")).to_contain_text("5,000 rescheduled …")
        # The browser asks whoever closes the tab.
        asked: list[str] = []

        def stay(question: Dialog) -> None:
            asked.append(question.type)
            question.dismiss()

        tab.once("dialog", stay)
        with tab.expect_event("dialog"):
            tab.close(run_before_unload=True)
        assert asked == ["beforeunload"]
        expect(dialog.get_by_role("status")).to_contain_text("5,000 rescheduled …")
        assert held.routes
        tab.close()
        dialog = move_all(page)
        # What is at that instant already is left alone. The portion on its way was carried out, or was not.
        expect(dialog.get_by_role("status")).to_contain_text(re.compile("^[27],000 messages wait"))
        left = number_in(dialog, "messages wait and match now")
        dialog.locator("input[name=number]").fill(f"{left}")
        dialog.get_by_role("button", name="Reschedule all").click()
        expect(dialog.get_by_role("status")).to_have_text(f"{left:,} rescheduled")
    keys: list[str | None] = []
    after: str | None = None
    while True:
        found = shop.list_messages("closed", max_messages=1_000, after=after)
        assert {one.deliver_at for one in found.messages} <= {BLACK_FRIDAY}
        keys += [one.key for one in found.messages]
        after = found.next
        if after is None:
            break
    assert sorted(map(str, keys)) == sorted(f"c-{n}" for n in range(12_000))
