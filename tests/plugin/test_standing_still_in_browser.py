"""A wheel that is stopped and a group that stands still, as they really are, are seen on the page (X08)."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from socket import gethostname
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect
from tests.plugin.airflow_server import AirflowServer
from tests.plugin.browsing import SHARED_ANSWER_MS, close, logged_in, open_view

from duewheel.store.broker import Broker
from duewheel.store.values.limits import LONGEST_WAIT

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.long, pytest.mark.needs("chromium")]

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)


@pytest.fixture
def wheel(night_dsn: str) -> Iterator[subprocess.Popen[bytes]]:
    """A wheel in a process of its own, for a broker with little in it: the page looks at it often."""
    command = [sys.executable, "-m", "duewheel.cli", "wheel", "run", "--dsn", night_dsn]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        yield process
        process.kill()


def test_x08_a_stopped_wheel_is_seen_and_its_due_messages_named(
    chromium: Browser, airflow: AirflowServer, night_dsn: str, wheel: subprocess.Popen[bytes]
) -> None:
    name = f"{gethostname()[:32]}:{wheel.pid}"
    with Broker(night_dsn) as night, logged_in(chromium, airflow, "viewer") as page:
        night.create_topic("frozen")
        open_view(page, airflow, "?broker=night")
        expect(page.get_by_role("heading", name="1 wheel running")).to_be_visible(timeout=SHARED_ANSWER_MS)
        os.kill(wheel.pid, signal.SIGSTOP)
        night.send("frozen", b"", delay=timedelta(0))
        verdict = page.get_by_role("region", name="Verdict")
        expect(verdict).to_contain_text(f"Wheel {name} stopped responding", timeout=SHARED_ANSWER_MS)
        overdue = page.get_by_role("group", name="Overdue")
        expect(overdue).to_contain_text(re.compile(r"1.*frozen since \d"), timeout=SHARED_ANSWER_MS)
        wheels = page.get_by_role("region", name="Wheels")
        expect(wheels.get_by_role("row", name=re.compile(f"^{name} .*stopped responding$"))).to_be_visible()
        os.kill(wheel.pid, signal.SIGCONT)
        expect(page.get_by_role("heading", name="1 wheel running")).to_be_visible(timeout=SHARED_ANSWER_MS)
        expect(overdue).not_to_contain_text("frozen", timeout=SHARED_ANSWER_MS)


def test_x08_a_group_behind_retention_is_marked_and_rewound(
    chromium: Browser, airflow: AirflowServer, shop: Broker, shop_dsn: str
) -> None:
    began = datetime.now(UTC) - 3 * HOUR
    with Broker(shop_dsn, clock=lambda: began) as past:
        past.create_topic("left", message_type="NORMAL", queues=1, retention=HOUR)
        past.send("left", b"", key="first")
        consumer = past.consumer("left", "left")
        consumer.ack(consumer.receive(wait=LONGEST_WAIT))
    later = began + MINUTE
    with Broker(shop_dsn, clock=lambda: later) as past:
        past.send("left", b"", key="second")
        past.tick("left")
    with logged_in(chromium, airflow, "op") as page:
        open_view(page, airflow, "?view=groups&sort=lag")
        row = page.get_by_role("row", name=re.compile("^left left "))
        expect(row).to_be_visible()
        standing = page.get_by_role("columnheader").all_inner_texts().index("Stalled")
        expect(row.get_by_role("cell").nth(standing)).to_have_text("for 2 h 59 min")
        expect(row.get_by_role("cell").nth(standing - 1)).to_contain_text(f"{began:%Y-%m-%d %H:%M}")
        # The group takes them both again, the one that it has had too.
        row.get_by_role("button", name="More actions on left, left").click()
        row.get_by_role("button", name="Rewind").click()
        dialog = page.get_by_role("alertdialog")
        dialog.locator("select[name=since]").select_option("at")
        dialog.locator("input[name=to]").fill(f"{began - MINUTE:%Y-%m-%dT%H:%M:%S}")
        told = dialog.get_by_role("status")
        expect(told).to_have_text("1 message is delivered again that the group has read.")
        dialog.get_by_role("button", name="Rewind").click()
        expect(told).to_have_text(
            "Rewound: 1 message to be delivered again. Ended: 0 leases; in them, from before that instant"
            " and ready again: 0 messages; taken back: 0 retries."
        )
        close(dialog)
    again = shop.consumer("left", "left")
    batch = again.receive(wait=LONGEST_WAIT)
    assert [one.key for one in batch] == ["first", "second"]
    again.ack(batch)
    with logged_in(chromium, airflow, "viewer") as page:
        open_view(page, airflow, "?view=groups")
        expect(page.get_by_role("row", name=re.compile("^left left "))).not_to_contain_text("for 3 h")
