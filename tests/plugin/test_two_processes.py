"""Two processes of the API server and two operators: a number is never older than the act before it (X31)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect
from tests.plugin.airflow_server import AirflowServer, airflow_server
from tests.plugin.browsing import logged_in, open_view

from duewheel.store import RetryPolicy
from duewheel.store.broker import Broker

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Route

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.long]

BROKER = "/duewheel/api/brokers/duewheel_default"
#: Users who ask at the same time, each over a connection of its own.
AT_ONCE = 10

Two = tuple[AirflowServer, AirflowServer]


@pytest.fixture(scope="module")
def dsn_of_two(fresh_database: Callable[[], tuple[str, str]]) -> str:
    """The database of the broker that both processes show."""
    return fresh_database()[1]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory, dsn_of_two: str) -> Iterator[Two]:
    """Two processes of one API server."""
    with (
        airflow_server(tmp_path_factory.mktemp("two"), {"duewheel_default": dsn_of_two}) as one,
        one.another() as other,
    ):
        other.start()
        other.wait_until_healthy()
        yield one, other


@pytest.fixture
def letters(dsn_of_two: str) -> Iterator[Callable[[str, int], None]]:
    """Makes a group with so many dead letters, on a topic of the same name."""
    with Broker(dsn_of_two) as broker:

        def die(name: str, number: int) -> None:
            broker.create_topic(name, message_type="NORMAL", queues=1)
            consumer = broker.consumer(name, name, retry=RetryPolicy(0, (timedelta(hours=1),)))
            broker.send_many(name, [{"body": b""}] * number)
            while batch := consumer.receive(max_messages=10_000):
                consumer.nack(batch, reason="HTTP 503")

        yield die


def asked(server: AirflowServer, path: str, body: object = None, role: str = "op") -> Any:
    """The answer of one process to a user."""
    status, answer = server.call("GET" if body is None else "POST", f"{BROKER}/{path}", body, role=role)
    assert status == 200, answer
    return answer


def instant(answer: Any) -> datetime:
    """When it was computed."""
    return datetime.fromisoformat(answer["now_at"])


def test_x31_after_an_act_both_processes_answer_with_its_numbers(
    two: Two, letters: Callable[[str, int], None]
) -> None:
    letters("numbers", 6)
    before = asked(two[0], "pulse")["dead"]
    for done in range(1, 5):
        for server in two:
            asked(server, "overview")
        acting = two[done % 2]
        discarded = asked(
            acting,
            "dead-letters/discard",
            {"group": "numbers", "max_messages": 1, "message_ids": None, "dry_run": False},
        )
        assert discarded["done"] == 1
        # More are left, so only the last portion has the numbers.
        assert discarded["pulse"] is None
        with ThreadPoolExecutor(AT_ONCE) as pool:
            pulses = list(pool.map(lambda n: asked(two[n % 2], "pulse"), range(AT_ONCE)))
        assert {one["dead"] for one in pulses} == {before - done}
    last = asked(two[0], "dead-letters/discard", {"group": "numbers", "dry_run": False})
    assert (last["done"], last["pulse"]["dead"]) == (2, before - 6)
    for server in two:
        for path in ("pulse", "overview"):
            assert instant(asked(server, path)) >= instant(last["pulse"])


def test_x31_a_second_operator_is_told_who_was_faster(two: Two, letters: Callable[[str, int], None]) -> None:
    letters("faster", 8)
    one, other = two
    which = {"group": "faster", "topic": "faster"}
    counted = asked(one, "dead-letters/discard", {**which, "dry_run": True}, "op")
    taken = {**which, "max_messages": 3, "dry_run": False}
    assert asked(other, "dead-letters/discard", taken, "admin")["done"] == 3
    done = asked(one, "dead-letters/discard", {**which, "dry_run": False}, "op")["done"]
    assert (counted["matched"], done) == (8, 5)
    path = "recent-actions?group=faster&topic=faster&within_seconds=600"
    # Each is told of the other, by whichever process.
    for server in two:
        for role in ("op", "admin"):
            assert [each["action"] for each in asked(server, path, role=role)["actions"]] == ["discard"]
    for elsewhere in ("group=other", "group=faster&topic=other", "topic=faster"):
        path = f"recent-actions?{elsewhere}&within_seconds=600"
        assert asked(one, path)["actions"] == []


@pytest.mark.needs("chromium")
def test_x31_a_browser_shows_no_older_answer_and_why_they_differ(
    chromium: Browser, two: Two, letters: Callable[[str, int], None]
) -> None:
    letters("shown", 8)
    one, other = two
    with logged_in(chromium, one, "op") as page:
        old = asked(other, "pulse")
        open_view(page, one, "?view=dead&group=shown&topic=shown")
        page.get_by_role("region", name="Reasons").get_by_role("button", name="Discard").click()
        dialog = page.get_by_role("alertdialog")
        expect(dialog).to_contain_text("8 dead letters have it.")
        taken = {"group": "shown", "topic": "shown", "max_messages": 3, "dry_run": False}
        asked(other, "dead-letters/discard", taken, "admin")
        dialog.get_by_role("button", name="Discard").click()
        expect(dialog).to_contain_text(
            re.compile(r"5 discarded\.\s+3 of 8 were discarded by another user at \d\d:\d\d\.")
        )
        dialog.get_by_role("button", name="Close").first.click()

        def from_before(route: Route) -> None:
            route.fulfill(body=json.dumps(old), content_type="application/json")

        open_view(page, one)
        tile = page.get_by_role("group", name="Dead letters")
        shown = str(old["dead"] - 8)
        expect(tile).to_contain_text(re.compile(rf"Dead letters\s*{shown}"))
        page.route("**/pulse", from_before)
        for _ in range(2):
            with page.expect_response("**/pulse", timeout=30_000):
                pass
        expect(tile).to_contain_text(re.compile(rf"Dead letters\s*{shown}"))
