"""Ten tasks of an operator at night, each played in the browser with the mouse and with keys alone (X08).

The tasks and their clicks stand in the table of docs/how-to/page.md, and are compared with what was counted.
Each task begins at the overview. A press of the mouse is a click, into a field too; typing, Tab and Enter are
none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect
from tests.plugin.airflow_server import AirflowServer
from tests.plugin.browsing import logged_in, open_view

from duewheel.store import RetryPolicy
from duewheel.store.broker import Broker
from duewheel.store.values.limits import LONGEST_WAIT

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.long, pytest.mark.needs("chromium")]

HOUR = timedelta(hours=1)
AT_ONCE_DEAD = RetryPolicy(0, (HOUR,))
BLACK_FRIDAY = datetime(2030, 11, 29, tzinfo=UTC)
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "page.md"
#: Of all tasks together.
MOST_CLICKS = 25
#: More than there are controls on any view, and in Airflow's own frame.
MOST_TABS = 300
#: Counts where it cannot be forgotten: in the page, and beyond its views.
COUNT = "addEventListener('pointerdown', () => { window.clicks = (window.clicks ?? 0) + 1 }, true)"

#: Null of an element that was drawn anew meanwhile.
IS_FOCUSED = "one => one.isConnected ? document.activeElement === one : null"


def clicks_of_the_table() -> dict[str, int]:
    """The tasks that the page names, with their clicks."""
    rows = re.findall(r"^\| ([^|]+) \|[^|]+\| (\d+) \|$", PAGE.read_text(), re.MULTILINE)
    return {task: int(clicks) for task, clicks in rows}


class Operator:
    """Who sits before the page.

    Attributes:
        page: what is seen.
        dialog: the question that is open.
    """

    def __init__(self, page: Page) -> None:
        self.page = page
        self.dialog = page.get_by_role("alertdialog")

    @property
    def clicks(self) -> int:
        """How often the mouse was pressed since the page was loaded."""
        return int(self.page.evaluate("window.clicks ?? 0"))

    def use(self, control: Locator) -> None:
        """Click a link, a button or a box."""
        # A box lies under its own mark.
        control.click(force=control.get_attribute("type") == "checkbox")

    def go_into(self, field: Locator) -> None:
        """Click into a field."""
        field.click()

    def view(self, name: str) -> None:
        """Go to a view."""
        self.use(self.page.get_by_role("navigation", name="Views").get_by_role("link", name=name))

    def tile(self, name: str) -> Locator:
        """One of the numbers that the overview begins with."""
        return self.page.get_by_role("group", name=name)

    def table(self, name: str) -> Locator:
        """The rows of a list."""
        return self.page.get_by_role("region", name=name, exact=True).get_by_role("row")

    def row(self, table: str, words: str) -> Locator:
        """The first row of a list that has these words."""
        return self.table(table).filter(has_text=words).first

    def fill(self, field: Locator, value: str) -> None:
        """Go into a field, and give it a value."""
        self.go_into(field)
        field.fill(value)

    def enter(self, field: str, value: str) -> None:
        """Fill a field of the filter, and have it applied."""
        it = self.page.locator(f"input[name={field}]")
        self.fill(it, value)
        it.press("Enter")

    def search(self, words: str) -> None:
        """Look for a key, or a topic."""
        self.page.keyboard.press("Control+k")
        expect(self.page.get_by_role("search").locator("input")).to_be_focused()
        self.page.keyboard.type(words)
        self.page.keyboard.press("Enter")

    def answer(self, action: str, number: str = "") -> None:
        """Confirm, and where the dialog asks for it type the number first."""
        if number:
            expect(self.dialog.locator("input[name=number]")).to_be_focused()
            self.page.keyboard.type(number)
        self.use(self.dialog.get_by_role("button", name=action, exact=True))

    def reads(self, words: str) -> None:
        """The dialog says how it went."""
        expect(self.dialog.get_by_role("status")).to_contain_text(words)


class OperatorWithoutAMouse(Operator):
    """Who has a keyboard alone."""

    def use(self, control: Locator) -> None:
        """Come to a control by Tab, and press it as its kind wants."""
        self.go_into(control)
        self.page.keyboard.press("Space" if control.get_attribute("type") == "checkbox" else "Enter")

    def fill(self, field: Locator, value: str) -> None:
        """Come to a field by Tab, and type; an instant part by part, as a browser in English wants it."""
        self.go_into(field)
        if field.get_attribute("type") == "datetime-local":
            at = datetime.fromisoformat(value)
            self.page.keyboard.type(f"{at:%m%d%Y}")
            self.page.keyboard.press("Tab")
            self.page.keyboard.type(f"{at:%I%M%S%p}")
        else:
            self.page.keyboard.press("Control+A")
            self.page.keyboard.type(value)
        expect(field).to_have_value(value)

    def go_into(self, field: Locator) -> None:
        """Press Tab until the focus is there."""
        expect(field).to_be_enabled()
        element = field.element_handle()
        for _ in range(MOST_TABS):
            self.page.keyboard.press("Tab")
            while (is_there := element.evaluate(IS_FOCUSED)) is None:
                element = field.element_handle()
            if is_there:
                return
        raise AssertionError(f"{MOST_TABS} presses of Tab do not come to {field}")


@pytest.fixture(scope="module", params=[Operator, OperatorWithoutAMouse])
def hands(request: pytest.FixtureRequest) -> type[Operator]:
    """What the operator has."""
    kind: type[Operator] = request.param
    return kind


@pytest.fixture(scope="module")
def night(night_dsn: str, hands: type[Operator]) -> Iterator[Broker]:
    """A shop on the night in which no wheel turns, with nothing of the nights before."""
    with Broker(night_dsn) as broker:
        for topic in broker.topics():
            broker.delete_topic(topic.name)
        broker.create_topic("orders.timeout", max_delay=timedelta(days=3_650))
        broker.send("orders.timeout", {"order": 4711}, key="order-4711", delay=HOUR)
        broker.send_many(
            "orders.timeout",
            [{"body": b"", "delay": 2 * HOUR, "key": f"customer-7/{number}"} for number in range(120)],
        )
        broker.send("orders.timeout", b"", key="postpone-me", delay=HOUR)
        broker.send_many("orders.timeout", [{"body": b"", "deliver_at": BLACK_FRIDAY, "key": "sale"}] * 70)
        broker.create_topic("vouchers.expire")
        broker.send("vouchers.expire", b"", delay=timedelta(0))
        broker.create_topic("orders.placed", message_type="NORMAL")
        broker.send_many("orders.placed", [{"body": b""}] * 40)
        ship = broker.consumer("orders.placed", "ship")
        ship.ack(ship.receive(max_messages=8, wait=LONGEST_WAIT))
        broker.create_topic("mails", message_type="NORMAL")
        broker.send_many("mails", [{"body": b"", "key": f"mail-{number}"} for number in range(5_003)])
        mailer = broker.consumer("mails", "mail", retry=AT_ONCE_DEAD)
        for _ in range(5):
            mailer.nack(mailer.receive(max_messages=1_000, wait=LONGEST_WAIT), reason="HTTP 503: try later")
        mailer.nack(mailer.receive(max_messages=1_000, wait=LONGEST_WAIT), reason="no address: poison")
        broker.create_topic("prices", message_type="NORMAL")
        broker.send("prices", {"amount": "19,90"}, key="typo")
        book = broker.consumer("prices", "book", retry=AT_ONCE_DEAD)
        book.nack(book.receive(wait=LONGEST_WAIT), reason="no number: 19,90")
        yield broker


@pytest.fixture(scope="module")
def operator(
    chromium: Browser, airflow: AirflowServer, hands: type[Operator], night: Broker
) -> Iterator[Operator]:
    """An operator whose clicks are counted from each loading of the page on."""
    with logged_in(chromium, airflow, "op") as page:
        page.add_init_script(COUNT)
        yield hands(page)


def what_happened_to_an_order(operator: Operator, night: Broker) -> None:
    operator.search("order-4711")
    operator.use(operator.row("Messages", "order-4711").get_by_role("link").last)
    expect(operator.page.get_by_role("heading", name="Message order-4711")).to_be_visible()
    expect(operator.row("History", "waiting")).to_be_visible()


def why_nothing_is_released(operator: Operator, night: Broker) -> None:
    told = operator.page.get_by_role("region", name="Verdict")
    expect(told).to_contain_text("No wheel running")
    expect(told).to_contain_text("start Airflow’s triggerer")
    expect(told).to_contain_text("are not released")


def who_is_behind(operator: Operator, night: Broker) -> None:
    operator.use(operator.tile("Oldest ready message").get_by_role("link", name="ship"))
    expect(operator.page.get_by_role("heading", name="Group ship on orders.placed")).to_be_visible()
    expect(operator.page.get_by_text("Behind: 32 ready messages, the oldest for")).to_be_visible()


def one_reason_is_redriven_but_not_the_poison(operator: Operator, night: Broker) -> None:
    operator.use(operator.tile("Dead letters").get_by_role("link", name="5,00"))
    operator.use(operator.row("Groups with dead letters", "mails").get_by_role("link").first)
    operator.use(operator.row("Reasons", "HTTP 503").get_by_role("button", name="Redrive"))
    operator.reads("5,000 dead letters have it.")
    operator.answer("Redrive", number="5000")
    operator.reads("5,000 sent again.")
    assert {one.reason for one in night.dead_letters("mail", redriven=False)} == {"no address: poison"}


def a_customer_is_recalled(operator: Operator, night: Broker) -> None:
    operator.search("customer-7/")
    operator.enter("topic", "orders.timeout")
    expect(operator.page.get_by_text("of all that match, 120 wait")).to_be_visible()
    operator.use(operator.page.get_by_role("checkbox", name="Select all shown"))
    operator.use(operator.page.get_by_role("button", name="Select all 120"))
    operator.use(operator.page.get_by_role("button", name="Recall all"))
    operator.reads("120 messages wait and match now.")
    operator.answer("Recall all")
    operator.reads("120 recalled: never delivered")


def one_is_postponed(operator: Operator, night: Broker) -> None:
    operator.search("postpone-me")
    # Its row, below that of the names.
    expect(operator.table("Messages")).to_have_count(2)
    operator.use(operator.row("Messages", "postpone-me").get_by_role("checkbox"))
    operator.use(operator.page.get_by_role("button", name="Reschedule"))
    operator.answer("Reschedule")
    operator.reads("1 rescheduled")


def how_many_on_black_friday(operator: Operator, night: Broker) -> None:
    operator.search("orders.timeout")
    operator.use(operator.page.get_by_role("link", name="Waiting messages"))
    operator.enter("from", "2030-11-29T00:00")
    operator.enter("until", "2030-11-29T00:01")
    expect(operator.page.get_by_text("50 of 70", exact=True)).to_be_visible()


def a_group_is_paused(operator: Operator, night: Broker) -> None:
    operator.view("Groups")
    operator.use(operator.row("Consumer groups", "book").get_by_role("button", name="Pause"))
    operator.answer("Pause")
    operator.reads("book is paused.")


def a_dead_letter_is_edited_and_sent(operator: Operator, night: Broker) -> None:
    operator.use(operator.tile("Dead letters").get_by_role("link"))
    operator.use(operator.row("Groups with dead letters", "book").get_by_role("link").first)
    operator.use(operator.row("Dead letters", "typo").get_by_role("link").last)
    operator.use(operator.page.get_by_role("button", name="Edit and send"))
    body = operator.dialog.locator("textarea[name=body]")
    expect(body).to_be_focused()
    operator.page.keyboard.press("Control+A")
    operator.page.keyboard.type('{"amount": "19.90"}')
    operator.answer("Edit and send")
    operator.reads("Sent as a new message")


def whether_it_is_late_and_since_when(operator: Operator, night: Broker) -> None:
    # Of several topics the tile has the number; more are overdue where the tests before took long.
    expect(operator.tile("Overdue")).to_contain_text(re.compile(r"(vouchers\.expire|\d topics) since \d+"))


TASKS = {
    "What happened to order 4711?": what_happened_to_an_order,
    "Why is nothing released?": why_nothing_is_released,
    "Who is behind?": who_is_behind,
    "Redrive 5 000 dead letters of one reason, but not the poison": one_reason_is_redriven_but_not_the_poison,
    "Recall all messages of a customer": a_customer_is_recalled,
    "Postpone one message by an hour": one_is_postponed,
    "How many are due on Black Friday at midnight?": how_many_on_black_friday,
    "Pause a group": a_group_is_paused,
    "Edit and send a dead letter": a_dead_letter_is_edited_and_sent,
    "Is anything late, and since when?": whether_it_is_late_and_since_when,
}


@pytest.mark.parametrize("task", TASKS)
def test_x08_a_task_takes_an_operator_the_clicks_of_the_page(
    airflow: AirflowServer, operator: Operator, night: Broker, task: str
) -> None:
    open_view(operator.page, airflow, "?broker=night")
    expect(operator.page.get_by_text(re.compile("Due: .* before and after now"))).to_be_visible()
    TASKS[task](operator, night)
    assert operator.clicks == (clicks_of_the_table()[task] if type(operator) is Operator else 0)


def test_x08_the_page_names_the_ten_tasks() -> None:
    assert list(clicks_of_the_table()) == list(TASKS)


def test_x08_the_ten_tasks_take_25_clicks() -> None:
    assert sum(clicks_of_the_table().values()) <= MOST_CLICKS
