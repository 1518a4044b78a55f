"""The page in Airflow's UI with ten million waiting messages on a thousand topics; a tenth without --long.

Each list and each search is timed at a real API server of Airflow, from the request to the whole answer; the
first view, and the cost of an open one, are measured in a real browser.
"""

from __future__ import annotations

import gzip
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright
from tests.plugin.airflow_server import AirflowServer, airflow_server

from benchmarks import ours
from benchmarks.bench import Bench, Subject, seconds
from benchmarks.measure import Goal, Row, thousands
from benchmarks.messages import now
from benchmarks.program import main
from benchmarks.server import query
from duewheel.cli.demo.processes import session_members
from duewheel.plugin.bundle import script
from duewheel.store import Broker, RetryPolicy

MESSAGES = 10_000_000
TOPICS = 1_000
#: One topic has a tenth of all messages, the other topics share the rest.
LARGE = "topic-1"
HORIZON = timedelta(days=30)
CHUNK = 100_000
DEAD = 20_000
ROUNDS = 20
#: These answers are computed at most once in this time, and less often after this many rounds.
SHARED = ("overview", "pulse", "lateness", "names")
SHARED_SECONDS = 2.1
SHARED_ROUNDS = 3
OPEN_SECONDS = 180
#: Longer than from one round of its launcher to the next.
AUTOVACUUM_RESTS_SECONDS = 70
#: The second one of these is awaited: in the page, and in Airflow's list of assets.
CHARTS = ".uplot"
ASSETS = "tbody tr"
CHROMIUM = "/usr/bin/chromium"
TASK = "airflow:shop/manual__1/take/-1"


def _seed(broker: Broker, dsn: str, messages: int) -> str:
    """Make topics with waiting, leased, failed and dead messages; returns the id of one message."""
    ours.make_topics(dsn, 1, TOPICS, group="format('group-%s', n % 50)", options=", max_delay => '60 days'")
    some_id = ""
    large = messages // 10
    counts = [(LARGE, large)] + [
        (f"topic-{n}", (messages - large) // (TOPICS - 1)) for n in range(2, TOPICS + 1)
    ]
    start = now() + timedelta(minutes=1)
    for topic, count in counts:
        for first in range(0, count, CHUNK):
            receipts = broker.send_many(
                topic,
                [
                    {
                        "body": b'{"order": 4711}',
                        "deliver_at": start + (number * 7_919 % count) / count * HORIZON,
                        "key": f"{topic}-{number}",
                        "tag": "paid" if number % 3 else "unpaid",
                    }
                    for number in range(first, min(first + CHUNK, count))
                ],
            )
            some_id = some_id or receipts[0].message_id
    broker.create_topic("placed", message_type="NORMAL")
    consumer = broker.consumer("placed", "ship", name=TASK, retry=RetryPolicy(0, (timedelta(minutes=1),)))
    broker.send_many("placed", [{"body": b"{}", "key": f"dead-{n}"} for n in range(DEAD)])
    for _ in range(DEAD // 1_000):
        consumer.nack(consumer.receive(max_messages=1_000), reason="HTTP 503")
    other = broker.consumer("placed", "bill", name="worker", retry=RetryPolicy(3, (timedelta(hours=1),)))
    for _ in range(DEAD // 2_000):
        other.nack(other.receive(max_messages=1_000), reason="HTTP 404")
        other.receive(max_messages=10, invisible=timedelta(hours=1))
    return some_id


def _until_autovacuum_rests(dsn: str) -> None:
    """Wait, because no user looks at ten million messages in the minute in which all of them were sent."""
    busy_at = time.monotonic()
    while time.monotonic() - busy_at < AUTOVACUUM_RESTS_SECONDS:
        if query(dsn, "select 1 from pg_stat_activity where backend_type = 'autovacuum worker'"):
            busy_at = time.monotonic()
        # Postgres gives no sign when a worker ends.
        time.sleep(1)


def _requests(some_id: str) -> dict[str, str]:
    """Every list and every search of the page, by a description."""
    soon = now() + timedelta(days=1)
    window = f"due_from={soon:%Y-%m-%dT%H:%M:%SZ}&due_until={soon + timedelta(hours=1):%Y-%m-%dT%H:%M:%SZ}"
    return {
        "the strip of every view": "pulse",
        "names to complete": "names",
        "lateness of the last day": "lateness",
        "overview, next hour": "overview?span=hour",
        "overview, next days": "overview?span=days",
        "topics": "topics?limit=50",
        "groups": "groups?limit=50",
        "leases": "leases",
        "retries": "retries",
        "dead letters": "dead-letters?group=ship&redriven=false",
        "dead letters by a reason that none has": "dead-letters?group=ship&reason_contains=nowhere",
        "schedules": "schedules",
        "waiting consumers": "waiting-consumers",
        "messages of all topics": "messages",
        "messages of a topic": f"messages?topic={LARGE}",
        "messages by a key": "messages?key_prefix=topic-777-42",
        "messages by a key that is nowhere": "messages?key_prefix=nowhere",
        "messages by a tag that none has, all topics": "messages?tag=nowhere",
        "messages by time": f"messages?{window}",
        "messages that were released": "messages?state=released",
        "messages that were recalled, of a topic": f"messages?topic={LARGE}&state=recalled",
        "one message": f"messages/{some_id}",
        "messages of a task instance": "task-messages?dag_id=shop&run_id=manual__1&task_id=take"
        "&topic=placed&group=ship",
    }


@contextmanager
def _open_page(browser: Browser, airflow: AirflowServer) -> Iterator[Page]:
    """A page of a browser whose user has logged in and has the scripts in its cache."""
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    page = context.new_page()
    page.goto(f"{airflow.url}/auth/login/?next={airflow.url}/plugin/duewheel")
    page.locator("input[name=username]").fill("admin")
    page.locator("input[name=password]").fill(airflow.password)
    page.locator("button[type=submit]").click()
    page.locator(".uplot").first.wait_for(timeout=120_000)
    yield page
    context.close()


def _cpu_seconds(bench: Bench, airflow: AirflowServer) -> float:
    airflows = sum(sum(one.cpu_times()[:2]) for one in session_members([airflow.pid]))
    return bench.server.cpu_seconds() + airflows


def page(bench: Bench) -> Iterator[Row]:
    """Server time of each list and search, the first view, the bundle, and the cost of an open overview."""
    messages = bench.size(MESSAGES, MESSAGES // 10)
    what = f"{thousands(messages)} messages wait on {thousands(TOPICS)} topics"
    bundle = len(gzip.compress(script().read_bytes(), 9)) / 1000
    goals = [Goal(80, "at most", "ours")]
    yield Row("page-bundle", "the page's script, compressed", "kB", [bundle], goals=goals)
    with (
        bench.server.duewheel() as dsn,
        Broker(dsn) as broker,
        tempfile.TemporaryDirectory(prefix="duewheel-page-") as directory,
    ):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", directory)
        home = Path(directory) / "airflow"
        home.mkdir()
        some_id = _seed(broker, dsn, messages)
        _until_autovacuum_rests(dsn)
        with airflow_server(home, {"duewheel_default": dsn}) as airflow:
            yield from _answers(airflow, _requests(some_id), what)
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
                with _open_page(browser, airflow) as opened:
                    yield from _views(bench, airflow, opened, what)
                browser.close()


def _answers(airflow: AirflowServer, requests: dict[str, str], what: str) -> Iterator[Row]:
    for name, path in requests.items():
        address = f"/duewheel/api/brokers/duewheel_default/{path}"
        is_shared = path.startswith(SHARED)
        readings = []
        for _ in range(SHARED_ROUNDS if is_shared else ROUNDS):
            if is_shared:
                # Otherwise the answer of the previous round would be measured.
                time.sleep(SHARED_SECONDS)
            started = time.perf_counter()
            status, answer = airflow.call("GET", address)
            readings.append((time.perf_counter() - started) * 1000)
            if status != 200:
                raise AssertionError(f"{address} answered {status}: {answer}")
        yield Row(
            f"page-{name.replace(' ', '-').replace(',', '')}",
            f"{what}: {name}",
            "ms",
            readings,
            goals=[Goal(300, "at most", "ours")],
        )


def _views(bench: Bench, airflow: AirflowServer, opened: Page, what: str) -> Iterator[Row]:
    readings: list[float] = []
    airflows: list[float] = []
    overview, assets = f"{airflow.url}/plugin/duewheel", f"{airflow.url}/assets"
    for _ in range(bench.pairs):
        for address, shown, taken in ((overview, CHARTS, readings), (assets, ASSETS, airflows)):
            taken.append(seconds(partial(_load, opened, address, shown)))
            opened.goto("about:blank")
    yield Row(
        "page-first-view",
        f"{what}: the overview in a browser, from the address to its charts",
        "s",
        readings,
        airflows,
        "Airflow's own list of assets",
        [Goal(1.0, "at most", "ours")],
    )
    shares = []
    _load(opened, overview, CHARTS)
    for is_open in (True, False):
        if not is_open:
            opened.goto("about:blank")
        opened.wait_for_timeout(3_000)
        before = _cpu_seconds(bench, airflow)
        started = time.monotonic()
        opened.wait_for_timeout(OPEN_SECONDS * 1000)
        used = _cpu_seconds(bench, airflow) - before
        shares.append(used / (time.monotonic() - started) * 100)
    yield Row(
        "page-open",
        f"{what}: an open overview, share of a core of API server and Postgres",
        "%",
        [shares[0] - shares[1]],
        goals=[Goal(1.0, "at most", "ours")],
        notes=[f"with it {shares[0]:.2f} %, without {shares[1]:.2f} %"],
    )


def _load(opened: Page, address: str, shown: str) -> None:
    opened.goto(address, wait_until="commit")
    opened.locator(shown).nth(1).wait_for(timeout=60_000)


SUBJECTS = [Subject("page", "the page in Airflow's UI with 10 million waiting messages", page)]

if __name__ == "__main__":
    main("page", __doc__, SUBJECTS)
