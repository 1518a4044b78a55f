"""What a screen reader is told of each view: its parts, their roles, names and order (X08)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect
from tests.plugin.airflow_server import AirflowServer
from tests.plugin.browsing import follow, logged_in, open_view

from duewheel.store import RetryPolicy
from duewheel.store.broker import Broker
from duewheel.store.values.limits import LONGEST_WAIT

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.needs("chromium")]

HOUR = timedelta(hours=1)
DUE = datetime(2030, 1, 5, 10, tzinfo=UTC)
AT = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"

FRAME = """
- heading "Delay messages" [level=1]
- combobox "Broker"
- paragraph: /times in UTC/
- navigation "Views":
  - link "Overview"
  - link "Topics"
  - link "Messages"
  - link "Groups"
  - link "Leases"
  - link "Retries"
  - link "Dead letters"
  - link "Schedules"
  - link "Watchers"
- region "State of the broker"
"""
#: Each view by its query string. A list has these rows among those that other tests left.
VIEWS = {
    "?topic=aloud-now": f"""
- 'heading "Due: 0 in the next hour by minute" [level=2]'
- combobox "Topic"
- 'textbox "From (empty: now)"'
- button "next 3 days by hour"
- button "next hour by minute" [pressed]
- button "next minute by second"
- 'img "Messages due in the next hour by minute, by topic: 0 in all"'
- button "As a list"
- heading "Groups, those that stand still, have dead letters or lag first" [level=2]
- link "All groups"
- region "Consumer groups":
  - table "Consumer groups":
    - rowgroup:
      - row:
        - columnheader "Group"
        - columnheader "Topic"
        - columnheader "Ready"
        - columnheader "Oldest of these"
        - columnheader "In flight"
        - columnheader "Waiting for a retry"
        - columnheader "Dead letters"
        - columnheader "Read to"
        - columnheader "Stands still"
    - rowgroup:
      - row /^buried aloud-now 0 – 1 0 1 {AT} .*ago$/
      - row /^patient aloud-now 0 – 1 1 0 {AT} .*ago$/
- heading "The last hour, by minute, on aloud-now" [level=2]
- img "Messages that came due, were received, acked and failed, by minute"
- heading "Lateness of release in the last day, the worst first" [level=2]
- region "Lateness of release by topic"
- heading "No wheel is connected" [level=2]
""",
    "?view=topics": f"""
- heading "Topics" [level=2]
- button "Refresh"
- region "Topics":
  - table "Topics":
    - rowgroup:
      - row "Topic Type Waiting Next due Released up to Stragglers"
    - rowgroup:
      - row "aloud DELAY 1 2030-01-05 10:00:00 – 0":
        - cell "aloud":
          - link "aloud"
      - row /^aloud-now NORMAL 0 – {AT} 0$/
""",
    "?view=messages&topic=aloud": f"""
- heading "Messages" [level=2]
- combobox "Topic": aloud
- textbox "Key begins with"
- textbox "Tag"
- combobox "State":
  - option "waiting" [selected]
  - option "released"
  - option "recalled"
  - option "moved"
  - option "all"
- textbox "Due from"
- textbox "Due before"
- textbox "Message id"
- button "Refresh"
- paragraph: 1 of 1
- region "Messages":
  - table "Messages":
    - rowgroup:
      - row "Choose all Due Topic Key Tag State Sent Id":
        - columnheader "Choose all":
          - checkbox "Choose all"
    - rowgroup:
      - row /^Choose waits 2030-01-05 10:00:00 in [^ ]+ d .* aloud waits unpaid waiting {AT} [0-9a-f…]+$/:
        - cell:
          - checkbox "Choose waits"
        - cell:
          - link /^[0-9a-f…]+$/
""",
    "?view=groups": f"""
- heading "Groups" [level=2]
- button "by topic" [pressed]
- button "that lag most"
- button "with the most dead letters"
- button "Refresh"
- region "Consumer groups":
  - table "Consumer groups":
    - rowgroup:
      - row /^Group Topic Ready .* Stands still Actions$/
    - rowgroup:
      - row /^buried aloud-now 0 – 1 0 1 {AT} .*ago Pause Rewind Delete$/:
        - cell "1":
          - link "1"
        - cell:
          - button "Pause"
          - button "Rewind"
          - button "Delete"
""",
    "?view=leases&group=patient": f"""
- heading "Open leases, those that end first at the top" [level=2]
- combobox "Group": patient
- combobox "Topic"
- region "Leases":
  - table "Leases":
    - rowgroup:
      - row "Ends Group Topic Queue Consumer Since Answered Messages Actions":
        - columnheader "Ends":
          - button "Ends"
    - rowgroup:
      - row /^{AT} in .* patient aloud-now 0 worker {AT} .*ago 0 of 1 first attempts Release$/:
        - cell:
          - button "Release"
- heading "Consumers that wait for messages" [level=2]
""",
    "?view=retries&group=patient": f"""
- heading "Messages that wait for their next attempt, the next one first" [level=2]
- combobox "Group": patient
- combobox "Topic"
- region "Retries":
  - table "Retries":
    - rowgroup:
      - row "Choose all Next attempt Attempt Group Topic Key Reason Id"
    - rowgroup:
      - row /^Choose dies {AT} 2 patient aloud-now dies HTTP 503 [0-9a-f…]+$/:
        - cell:
          - checkbox "Choose dies"
""",
    "?view=dead&group=buried": f"""
- heading "Dead letters by topic, the oldest first" [level=2]
- combobox "Group": buried
- combobox "Topic"
- textbox "Key begins with"
- textbox "Reason contains"
- textbox "Reason does not contain"
- textbox "Dead from"
- textbox "Dead before"
- region "Reasons":
  - table "Reasons":
    - rowgroup:
      - row "Reason Dead letters First Last Actions"
    - rowgroup:
      - row /^HTTP 503 1 {AT} {AT} Redrive Discard$/:
        - cell:
          - button "Redrive"
          - button "Discard"
- button "Refresh"
- link "Export CSV"
- link "Export JSON lines"
- paragraph: 1 of 1
- region "Dead letters":
  - table "Dead letters":
    - rowgroup:
      - row "Choose all Dead since Topic Key Attempts Reason Kept until Id"
    - rowgroup:
      - row /^Choose dies {AT} aloud-now dies 1 HTTP 503 {AT} in 29 d .* [0-9a-f…]+$/
""",
    "?view=schedules": """
- heading "Schedules" [level=2]
- region "Schedules":
  - table "Schedules":
    - rowgroup:
      - row "Schedule Topic Occurs Next Last Missed ones Actions"
    - rowgroup:
      - row "aloud aloud every 1 d 2030-01-05 10:00:00 – once Pause":
        - cell:
          - button "Pause"
""",
    "?view=watchers": """
- heading "Watchers of all DAGs, those that cannot ring first" [level=2]
- status: No DAG that is active has a watcher of a topic.
""",
}
MESSAGE = f"""
- button "Refresh"
- heading "Message dies" [level=2]
- term: State
- definition: dead letter in buried waiting for a retry in patient
- term: Topic
- definition:
  - link "aloud-now"
- term: Due
- term: Sent
- term: Tag
- term: Message group
- term: Properties
- term: Id
- heading "History" [level=2]
- region "History":
  - table "History":
    - rowgroup:
      - row "State At Until Group Attempt Consumer Reason Actions"
    - rowgroup:
      - row /^sent {AT} .*ago – 1$/
      - row /^waiting {AT} /
      - row /^released {AT} /
      - row /^in flight {AT} .* buried 1 worker$/
      - row /^dead letter {AT} .* buried 1 HTTP 503 Redrive Edit and send$/
      - row /^in flight {AT} .* patient 1 worker$/
      - row /^waiting for a retry {AT} .* patient 2 HTTP 503 Retry now$/
- heading "Body" [level=2]
- button "Copy"
- link "Download"
- region "Body"
"""


@pytest.fixture(scope="module")
def spoken(shop: Broker) -> Broker:
    """A broker with one of everything that a view shows."""
    shop.create_topic("aloud", max_delay=timedelta(days=3_650))
    shop.send("aloud", {"order": 1}, key="waits", tag="unpaid", deliver_at=DUE)
    shop.add_schedule("aloud", "aloud", b"", every=timedelta(days=1), start_at=DUE)
    shop.create_topic("aloud-now", message_type="NORMAL", queues=1)
    for retry, group in ((RetryPolicy(0, (HOUR,)), "buried"), (RetryPolicy(3, (HOUR,)), "patient")):
        consumer = shop.consumer("aloud-now", group, name="worker", retry=retry)
        if group == "buried":
            shop.send_many("aloud-now", [{"body": b"", "key": "dies"}, {"body": b"", "key": "held"}])
        consumer.nack(consumer.receive(1, wait=LONGEST_WAIT), reason="HTTP 503")
        consumer.receive(1, invisible=HOUR, wait=LONGEST_WAIT)
    return shop


def test_x08_each_view_tells_its_parts_in_their_order(
    chromium: Browser, airflow: AirflowServer, spoken: Broker
) -> None:
    (dead,) = spoken.dead_letters("buried")
    views = {**VIEWS, f"?view=message&id={dead.message_id}": MESSAGE}
    with logged_in(chromium, airflow, "op") as page:
        open_view(page, airflow)
        told = page.locator("[data-page=duewheel]")
        for query, parts in views.items():
            follow(page, query)
            expect(told).to_match_aria_snapshot(FRAME + parts)
