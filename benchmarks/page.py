"""The page in Airflow's UI with ten million waiting messages on a thousand topics; a tenth without --long.

Each list and each search is timed at a real API server of Airflow, from the request to the whole answer; the
first view, and the cost of an open one, are measured in a real browser.
"""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright
from tests.plugin.airflow_server import AirflowServer, airflow_server

from benchmarks import ours
from benchmarks.bench import Bench, Subject, seconds
from benchmarks.measure import Goal, Row, thousands
from benchmarks.program import main
from benchmarks.server import connect
from duewheel.cli.demo.processes import session_members
from duewheel.plugin.bundle import script
from duewheel.store import Broker, RetryPolicy

ANSWER_GOAL_MS = 300
FIRST_VIEW_GOAL_SECONDS = 1.0
BUNDLE_GOAL_KB = 80
OPEN_GOAL_PERCENT = 1.0
MOVE_GOAL_PER_SECOND = 10_000

MESSAGES = 10_000_000
TOPICS = 1_000
#: One topic has a tenth of all messages, the others share the rest.
LARGE = "topic-0001"
HORIZON = timedelta(days=30)
CHUNK = 100_000
DEAD = 20_000
#: So many are moved at once, to another instant each time.
MOVED = 50_000
ROUNDS = 20
#: These answers are computed at most once in this time, and less often after this many rounds.
SHARED = ("overview", "pulse", "lateness", "names")
SHARED_SECONDS = 2.1
SHARED_ROUNDS = 3
OPEN_SECONDS = 180
#: Longer than from one round of its launcher to the next.
AUTOVACUUM_RESTS_SECONDS = 70
#: Of these, the second one is seen: in the page, and in Airflow's list of assets.
CHARTS = ".uplot"
ASSETS = "tbody tr"
CHROMIUM = "/usr/bin/chromium"
#: How long after the address was opened Airflow asked for the page's script: until then all is Airflow's.
SHELL_SECONDS = """
const all = performance.getEntriesByType("resource");
all.find((one) => one.name.includes("/duewheel/static/main.js")).startTime / 1000
"""
#: So many DAGs, each of which watches a topic of its own.
WATCHERS = 300
WATCHING = f"""
from airflow.sdk import DAG, Asset, AssetWatcher
from duewheel.triggers.timing_wheel import TimingWheelTrigger

for number in range(1, {WATCHERS + 1}):
    trigger = TimingWheelTrigger(f"topic-{{number:04}}", f"group-{{number % 50}}")
    asset = Asset(f"due_{{number}}", watchers=[AssetWatcher(name="wheel", trigger=trigger)])
    globals()[f"watch_{{number}}"] = DAG(
        f"watch_{{number}}", schedule=[asset], is_paused_upon_creation=False)
"""
TASK = "airflow:shop/manual__1/take/-1"

MAKE_TOPICS = """
SELECT duewheel.create_topic(format('topic-%%s', lpad(n::text, 4, '0')), max_delay => '60 days'),
       duewheel.subscribe(format('topic-%%s', lpad(n::text, 4, '0')), format('group-%%s', n %% 50))
  FROM generate_series(%s, %s) n
"""


def _seed(broker: Broker, dsn: str, messages: int) -> str:
    """Make topics with waiting, leased, failed and dead messages; returns the id of one message."""
    with closing(connect(dsn)) as connection, connection.cursor() as cursor:
        for first in range(1, TOPICS + 1, 500):
            cursor.execute(MAKE_TOPICS, (first, first + 499))
    some_id = ""
    large = messages // 10
    counts = [(LARGE, large)] + [
        (f"topic-{n:04}", (messages - large) // (TOPICS - 1)) for n in range(2, TOPICS + 1)
    ]
    start = ours.now() + timedelta(minutes=1)
    for topic, count in counts:
        for first in range(0, count, CHUNK):
            receipts = broker.send_many(
                topic,
                [
                    {
                        "body": b'{"order": 4711}',
                        "deliver_at": start + (number * 7_919 % count) / count * HORIZON,
                        "key": f"{topic[-4:]}-{number}",
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
    """Nobody looks at ten million messages in the very minute in which all of them came."""
    with closing(connect(dsn)) as connection, connection.cursor() as cursor:
        busy_at = time.monotonic()
        while time.monotonic() - busy_at < AUTOVACUUM_RESTS_SECONDS:
            cursor.execute("select count(*) from pg_stat_activity where backend_type = 'autovacuum worker'")
            if cursor.fetchone() != (0,):
                busy_at = time.monotonic()
            # Postgres tells nobody when a worker ends.
            time.sleep(1)


def _requests(some_id: str) -> dict[str, str]:
    """Every list and every search of the page, by a description."""
    soon = ours.now() + timedelta(days=1)
    window = f"due_from={soon:%Y-%m-%dT%H:%M:%SZ}&due_until={soon + timedelta(hours=1):%Y-%m-%dT%H:%M:%SZ}"
    return {
        "the strip of every view": "pulse",
        "names to complete": "names",
        "lateness of the last day": "lateness",
        "overview, next minute": "overview?span=minute",
        "overview, next hour": "overview?span=hour",
        "overview, next days": "overview?span=days",
        "overview of one topic": f"overview?span=hour&topic={LARGE}",
        "topics": "topics?limit=50",
        "topics, a page in the midst": "topics?limit=50&after=topic-0500",
        "groups": "groups?limit=50",
        "leases": "leases",
        "retries": "retries",
        "dead letters": "dead-letters?group=ship&redriven=false",
        "dead letters by reason": "dead-letters?group=ship&redriven=false&reason_contains=503",
        "dead letters by a reason that none has": "dead-letters?group=ship&reason_contains=nowhere",
        "schedules": "schedules",
        "waiting consumers": "waiting-consumers",
        "messages of all topics": "messages",
        "messages of a topic": f"messages?topic={LARGE}",
        "messages by a key prefix": f"messages?topic={LARGE}&key_prefix=0001-77",
        "messages by a key": "messages?key_prefix=0777-42",
        "messages by a key that is nowhere": "messages?key_prefix=nowhere",
        "messages by tag": f"messages?topic={LARGE}&tag=unpaid",
        "messages by a tag that none has": f"messages?topic={LARGE}&tag=nowhere",
        "messages by a tag that none has, all topics": "messages?tag=nowhere",
        "messages by time": f"messages?{window}",
        "messages by time, of a topic": f"messages?topic={LARGE}&{window}",
        "messages that were released": "messages?state=released",
        "messages that were recalled": "messages?state=recalled",
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


def _cpu_seconds(airflow_pid: int) -> float:
    return sum(sum(one.cpu_times()[:2]) for one in session_members([airflow_pid]))


def page(bench: Bench) -> Iterator[Row]:
    """Server time of each list and search, the first view, the bundle, and the cost of an open overview."""
    messages = bench.size(MESSAGES, MESSAGES // 10)
    what = f"{thousands(messages)} messages wait on {thousands(TOPICS)} topics"
    bundle = len(gzip.compress(script().read_bytes(), 9)) / 1000
    yield Row(
        "page-bundle",
        "the page's script, compressed",
        "kB",
        [bundle],
        goals=[Goal(BUNDLE_GOAL_KB, "at most", "ours")],
    )
    with (
        bench.server.duewheel() as dsn,
        Broker(dsn) as broker,
        tempfile.TemporaryDirectory(prefix="duewheel-page-") as directory,
    ):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", directory)
        home = Path(directory) / "airflow"
        home.mkdir()
        taken: list[str] = []
        seeding = seconds(lambda: taken.append(_seed(broker, dsn, messages)))
        yield Row("page-seeding", f"for information: seeding, {what}", "s", [seeding])
        _until_autovacuum_rests(dsn)
        with airflow_server(home, {"duewheel_default": dsn}) as airflow:
            yield from _answers(airflow, _requests(taken[0]), what)
            yield from _watchers(airflow)
            yield from _moves(bench, airflow, broker)
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
            readings.append(_milliseconds(airflow, address))
        yield Row(
            f"page-{name.replace(' ', '-').replace(',', '')}",
            f"{what}: {name}",
            "ms",
            readings,
            goals=[Goal(ANSWER_GOAL_MS, "at most", "ours")],
        )


def _milliseconds(airflow: AirflowServer, address: str) -> float:
    started = time.perf_counter()
    status, answer = airflow.call("GET", address)
    taken = (time.perf_counter() - started) * 1000
    if status != 200:
        raise AssertionError(f"{address} answered {status}: {answer}")
    return taken


def _watchers(airflow: AirflowServer) -> Iterator[Row]:
    """The list of the watchers, each of a DAG of its own."""
    (airflow.home.dags / "watching.py").write_text(WATCHING)
    subprocess.run(
        [sys.executable, "-m", "airflow", "dags", "reserialize"],
        env=airflow.home.environment,
        check=True,
        capture_output=True,
    )
    _, answer = airflow.call("GET", "/duewheel/api/watchers")
    if len(answer["watchers"]) != WATCHERS:
        raise AssertionError(f"{len(answer['watchers'])} watchers are listed, and not {WATCHERS}")
    yield Row(
        "page-watchers",
        f"{WATCHERS} watchers, each of a topic of its own: the list",
        "ms",
        [_milliseconds(airflow, "/duewheel/api/watchers") for _ in range(ROUNDS)],
        goals=[Goal(ANSWER_GOAL_MS, "at most", "ours")],
    )


def _moves(bench: Bench, airflow: AirflowServer, broker: Broker) -> Iterator[Row]:
    """Reschedule all of a topic, by the portions that the page asks for."""
    broker.create_topic("moving", max_delay=timedelta(days=60))
    broker.send_many("moving", [{"body": b"", "delay": HORIZON}] * MOVED)
    yield Row(
        "page-moves",
        f"{thousands(MOVED)} messages of a topic are rescheduled",
        "/s",
        [MOVED / seconds(lambda: _move_all(airflow)) for _ in range(bench.pairs)],
        goals=[Goal(MOVE_GOAL_PER_SECOND, "at least", "ours")],
    )


def _move_all(airflow: AirflowServer) -> None:
    address = "/duewheel/api/brokers/duewheel_default/messages/reschedule-matching"
    asked = {"topic": "moving", "dry_run": False, "deliver_at": (ours.now() + HORIZON).isoformat()}
    moved = 0
    while True:
        status, answer = airflow.call("POST", address, asked)
        if status != 200:
            raise AssertionError(f"{address} answered {status}: {answer}")
        moved += answer["moved"]
        if answer["next"] is None:
            break
        asked["after"] = answer["next"]
    if moved != MOVED:
        raise AssertionError(f"{moved} were moved, and not {MOVED}")


def _first_view(name: str, what: str, readings: list[float], airflows: list[float]) -> Row:
    goals = [Goal(FIRST_VIEW_GOAL_SECONDS, "at most", "ours")]
    return Row(name, what, "s", readings, airflows, "Airflow's own list of assets", goals=goals)


def _views(bench: Bench, airflow: AirflowServer, opened: Page, what: str) -> Iterator[Row]:
    readings: list[float] = []
    airflows: list[float] = []
    shells: list[float] = []
    for _ in range(bench.pairs):
        readings.append(seconds(lambda: _load(opened, airflow)))
        shells.append(opened.evaluate(SHELL_SECONDS))
        opened.goto("about:blank")
        airflows.append(seconds(lambda: _load_assets(opened, airflow)))
        opened.goto("about:blank")
    yield _first_view(
        "page-first-view",
        f"{what}: the overview in a browser, from the address to its charts",
        readings,
        airflows,
    )
    yield Row(
        "page-first-view-ours",
        f"for information: {what}: of that, from Airflow's request for the page's script to the charts",
        "s",
        [whole - shell for whole, shell in zip(readings, shells, strict=True)],
    )
    readings, airflows = [], []
    for _ in range(bench.pairs):
        opened.goto(airflow.url)
        opened.get_by_role("link", name="Delays").wait_for(timeout=60_000)
        readings.append(seconds(lambda: _follow(opened, "Delays", CHARTS)))
        opened.goto(airflow.url)
        opened.get_by_role("link", name="Delays").wait_for(timeout=60_000)
        airflows.append(seconds(lambda: _follow(opened, "Assets", ASSETS)))
    yield _first_view(
        "page-first-view-inside",
        f"{what}: the overview in a browser, from a click in Airflow to its charts",
        readings,
        airflows,
    )
    _load(opened, airflow)
    shares = []
    for at_work in (True, False):
        if not at_work:
            opened.goto("about:blank")
        opened.wait_for_timeout(3_000)
        before = bench.server.cpu_seconds() + _cpu_seconds(airflow.pid)
        started = time.monotonic()
        opened.wait_for_timeout(OPEN_SECONDS * 1000)
        used = bench.server.cpu_seconds() + _cpu_seconds(airflow.pid) - before
        shares.append(used / (time.monotonic() - started) * 100)
    yield Row(
        "page-open",
        f"{what}: an open overview, share of a core of API server and Postgres",
        "%",
        [shares[0] - shares[1]],
        goals=[Goal(OPEN_GOAL_PERCENT, "at most", "ours")],
        notes=[f"with it {shares[0]:.2f} %, without {shares[1]:.2f} %"],
    )


def _load(opened: Page, airflow: AirflowServer) -> None:
    opened.goto(f"{airflow.url}/plugin/duewheel", wait_until="commit")
    opened.locator(CHARTS).nth(1).wait_for(timeout=60_000)


def _load_assets(opened: Page, airflow: AirflowServer) -> None:
    opened.goto(f"{airflow.url}/assets", wait_until="commit")
    opened.locator(ASSETS).nth(1).wait_for(timeout=60_000)


def _follow(opened: Page, link: str, shown: str) -> None:
    opened.get_by_role("link", name=link).click()
    opened.locator(shown).nth(1).wait_for(timeout=60_000)


SUBJECTS = [Subject("page", "the page in Airflow's UI with 10 million waiting messages", page)]

if __name__ == "__main__":
    main("page", __doc__, SUBJECTS)
