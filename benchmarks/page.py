"""The page in Airflow's UI with ten million waiting messages on a thousand topics; a tenth without --long.

Each list and each search is timed at a real API server of Airflow, from the request to the whole answer; the
first view, and the cost of an open one, are measured in a real browser. Other subjects are the first view of
the trial's broker on a busy machine, and the processor time with 100 000 leases.
"""

from __future__ import annotations

import gzip
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache, partial
from pathlib import Path

from playwright.sync_api import Page, sync_playwright
from tests.busy_brokers import LEASES, build_groups, build_trial
from tests.plugin.airflow_server import AirflowServer, airflow_server

from benchmarks import ours, workers
from benchmarks.bench import Bench, Subject, seconds
from benchmarks.measure import Goal, Row, thousands
from benchmarks.messages import now
from benchmarks.processes import crew
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
#: Processes that keep the processors busy. A row reports the mean load of a minute, which rises so slowly.
LOAD = 8
LOAD_SECONDS = 90
GROUPS = 300
#: The processes of Postgres that answer the page, and what lets it compute each shared answer again.
SESSIONS = "SELECT pid FROM pg_stat_activity WHERE application_name = 'duewheel page'"
FORGET = "NOTIFY duewheel_page"
#: The second of these is awaited: in the page, with verdict and time axis, and in Airflow's list of assets.
FIRST_VIEW = "[data-page=duewheel]:has([aria-label=Verdict]) [data-step]"
ASSETS = "tbody tr"
#: What a browser tells a page whose tab is hidden; one without a screen shows every tab.
HIDE = """
Object.defineProperty(document, "visibilityState", { value: "hidden" });
document.dispatchEvent(new Event("visibilitychange"));
"""
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
        "overview, next hour": "overview?span=1h",
        "overview, next days": "overview?span=3d",
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


@cache
def _directory() -> tempfile.TemporaryDirectory[str]:
    """The homes of Airflow share files, which are kept to the end of the process."""
    return tempfile.TemporaryDirectory(prefix="duewheel-page-")


@contextmanager
def _served(dsn: str) -> Iterator[AirflowServer]:
    """An API server whose page shows a broker."""
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", _directory().name)
    home = Path(tempfile.mkdtemp(dir=_directory().name))
    with airflow_server(home, {"duewheel_default": dsn}) as airflow:
        yield airflow


@contextmanager
def _open_page(airflow: AirflowServer) -> Iterator[Page]:
    """A page of a browser whose user has logged in and has the scripts in its cache."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.goto(f"{airflow.url}/auth/login/?next={airflow.url}/plugin/duewheel")
        page.locator("input[name=username]").fill("admin")
        page.locator("input[name=password]").fill(airflow.password)
        page.locator("button[type=submit]").click()
        page.locator(FIRST_VIEW).first.wait_for(timeout=120_000)
        yield page
        browser.close()


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
    with bench.server.duewheel() as dsn, Broker(dsn) as broker:
        some_id = _seed(broker, dsn, messages)
        _until_autovacuum_rests(dsn)
        with _served(dsn) as airflow:
            yield from _answers(airflow, _requests(some_id), what, Goal(300, "at most", "ours"))
            with _open_page(airflow) as opened:
                yield _first_view(bench, airflow, opened, "page-first-view", what, Goal(1, "at most", "ours"))
                yield from _open_view(bench, airflow, opened, what)


def trial(bench: Bench) -> Iterator[Row]:
    """The first view at the trial's broker, on a machine that has more to do than it can."""
    with bench.server.duewheel() as dsn:
        build_trial(dsn)
        with (
            crew(1, workers.turn_wheel, dsn) as wheel,
            _served(dsn) as airflow,
            _open_page(airflow) as opened,
            crew(LOAD, workers.spin) as load,
        ):
            wheel.wait_until_ready()
            load.go()
            # Only time raises the mean load, which the row reports.
            time.sleep(LOAD_SECONDS)
            what, goal = f"the trial's broker, a load of {LOAD}", Goal(1.5, "at most", "ours")
            yield _first_view(bench, airflow, opened, "page-trial-first-view", what, goal)


def leases(bench: Bench) -> Iterator[Row]:
    """Processor time of the numbers of groups that have taken many leases."""
    with bench.server.duewheel() as dsn, Broker(dsn) as broker:
        build_groups(broker, GROUPS)
        ((taken,),) = query(dsn, LEASES)
        _until_autovacuum_rests(dsn)

        def processor_ms() -> float:
            pids = [pid for (pid,) in query(dsn, SESSIONS)]
            return sum(int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) for pid in pids) / 1e6

        with _served(dsn) as airflow:
            paths = {"the strip": "pulse", "groups": "groups?limit=50", "groups by lag": "groups?sort=lag"}
            requests = {f"processor time of {name}": path for name, path in paths.items()}
            what = f"{thousands(taken)} leases of {GROUPS} groups"
            yield from _answers(airflow, requests, what, Goal(50, "at most", "ours"), processor_ms)


def _wall_ms() -> float:
    return time.perf_counter() * 1000


def _answers(
    airflow: AirflowServer,
    requests: dict[str, str],
    what: str,
    goal: Goal,
    used_ms: Callable[[], float] = _wall_ms,
) -> Iterator[Row]:
    for name, path in requests.items():
        address = f"/duewheel/api/brokers/duewheel_default/{path}"
        is_shared = path.startswith(SHARED)
        readings = []
        for _ in range(SHARED_ROUNDS if is_shared else ROUNDS):
            if is_shared:
                # Otherwise the answer of the previous round would be measured.
                time.sleep(SHARED_SECONDS)
            before = used_ms()
            status, answer = airflow.call("GET", address)
            readings.append(used_ms() - before)
            if status != 200:
                raise AssertionError(f"{address} answered {status}: {answer}")
        yield Row(
            f"page-{name.replace(' ', '-').replace(',', '')}",
            f"{what}: {name}",
            "ms",
            readings,
            goals=[goal],
        )


def _first_view(bench: Bench, airflow: AirflowServer, opened: Page, name: str, what: str, goal: Goal) -> Row:
    readings: list[float] = []
    airflows: list[float] = []
    overview, assets = f"{airflow.url}/plugin/duewheel", f"{airflow.url}/assets"
    for _ in range(bench.pairs):
        query(airflow.settings.broker_dsn, FORGET)
        for address, shown, taken in ((overview, FIRST_VIEW, readings), (assets, ASSETS, airflows)):
            taken.append(seconds(partial(_load, opened, address, shown)))
            opened.goto("about:blank")
    return Row(
        name,
        f"{what}: the overview in a browser, from the address to verdict and time axis",
        "s",
        readings,
        airflows,
        "Airflow's own list of assets",
        [goal],
    )


def _open_view(bench: Bench, airflow: AirflowServer, opened: Page, what: str) -> Iterator[Row]:
    _load(opened, f"{airflow.url}/plugin/duewheel", FIRST_VIEW)
    shown = _share(bench, airflow, opened)
    requests: list[str] = []
    opened.evaluate(HIDE)
    # A request from before the tab was hidden may still be answered.
    opened.wait_for_timeout(3_000)
    opened.on("request", lambda one: requests.append(one.url))
    hidden = _share(bench, airflow, opened)
    requests_while_hidden = len(requests)
    opened.goto("about:blank")
    without = _share(bench, airflow, opened)
    yield Row(
        "page-open",
        f"{what}: an open overview, share of a core of API server and Postgres",
        "%",
        [shown - without],
        goals=[Goal(1.0, "at most", "ours")],
        notes=[f"shown {shown:.2f} %, hidden {hidden:.2f} %, closed {without:.2f} %"],
    )
    yield Row(
        "page-hidden",
        f"{what}: requests of an overview in a hidden tab within {OPEN_SECONDS} s",
        "requests",
        [requests_while_hidden],
        goals=[Goal(0, "at most", "ours")],
    )


def _share(bench: Bench, airflow: AirflowServer, opened: Page) -> float:
    """The share of a core, in per cent, that API server and Postgres take from now on."""
    opened.wait_for_timeout(3_000)
    before = _cpu_seconds(bench, airflow)
    started = time.monotonic()
    opened.wait_for_timeout(OPEN_SECONDS * 1000)
    used = _cpu_seconds(bench, airflow) - before
    return used / (time.monotonic() - started) * 100


def _load(opened: Page, address: str, shown: str) -> None:
    opened.goto(address, wait_until="commit")
    opened.locator(shown).nth(1).wait_for(timeout=60_000)


SUBJECTS = [
    Subject("page", "the page in Airflow's UI with 10 million waiting messages", page),
    Subject("trial", "the first view at the trial's broker on a busy machine", trial),
    Subject("leases", "the numbers of groups that have taken 100 000 leases", leases),
]

if __name__ == "__main__":
    main("page", __doc__, SUBJECTS)
