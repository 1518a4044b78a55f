"""docs/cookbook.md: the SQL and the DAG of each recipe are run, and its costs counted in Airflow's rows."""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tests.airflow_runs import (
    Airflow,
    AirflowHome,
    ForkedRun,
    RunResult,
    connection_json,
)
from tests.airflow_runs import (
    duewheel_airflow as duewheel_airflow,
)
from tests.conftest import execute
from tests.pages import examples
from tests.waiting import ask, beside, connected, until

from duewheel.testing.broker_in_test import BrokerInTest
from duewheel.testing.databases import Databases

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.timeout(1200)]

PAGE = (Path(__file__).parents[1] / "docs" / "cookbook.md").read_text(encoding="utf-8")
INTRODUCTION, *SECTIONS = re.split(r"^## ", PAGE, flags=re.MULTILINE)
RECIPES = dict(section.split("\n", 1) for section in SECTIONS)
(TABLE,) = examples(INTRODUCTION, "sql")


class Recipe:
    """One recipe of the page, on the broker and in the Airflow that all recipes share.

    Args:
        title: its heading.
        broker: the broker; its clock stands until it is moved.
        home: the Airflow.
    """

    def __init__(self, title: str, broker: BrokerInTest, home: AirflowHome) -> None:
        self._text = RECIPES[title]
        self._dsn = broker.dsn
        self._home = home
        (program,) = examples(self._text, "py")
        ((name, text),) = re.findall(r"\A# (\w+)\.py\n(.*)\Z", program, re.DOTALL)
        self.file = home.dags / f"{name}.py"
        self.file.write_text(text)
        setup, *steps = re.split(r"^-- (.*):\n", "\n".join(examples(self._text, "sql")), flags=re.MULTILINE)
        self._steps = dict(zip(steps[::2], steps[1::2], strict=True))
        self._execute(setup)

    @property
    def costs(self) -> Counter[str]:
        """The runs and tasks that the page names."""
        ((runs, tasks),) = re.findall(r"\*\*Costs:\*\* (\d+) runs?, (\d+) tasks?", self._text)
        return Counter(runs=int(runs), tasks=int(tasks))

    def step(self, title: str, **replaced: str) -> list[tuple[Any, ...]]:
        """Do one of the service's steps, with other values; the rows that it shows."""
        text = self._steps[title]
        for old, new in replaced.items():
            assert old in text
            text = text.replace(old, new)
        return self._execute(text)

    def _execute(self, text: str) -> list[tuple[Any, ...]]:
        statements = [
            statement for statement in re.split(r";$", text, flags=re.MULTILINE) if statement.strip()
        ]
        with connected(self._dsn) as connection:
            return [row for statement in statements for row in ask(connection, statement)]

    def rows(self) -> Counter[str]:
        """The rows of all runs in Airflow's tables."""
        with closing(sqlite3.connect(self._home.dags.parent / "airflow.db")) as database:
            ((runs, tasks),) = database.execute(
                "select (select count(*) from dag_run), (select count(*) from task_instance)"
            )
        return Counter(runs=runs, tasks=tasks)

    def start(self, *arguments: str) -> ForkedRun:
        """Begin a run of the recipe's DAG; the arguments are those of ``run_dag.py``."""
        return self._home.start_file(self.file, *arguments)

    def finish(self, run: ForkedRun) -> RunResult:
        """Wait for a run to end."""
        return self._home.finish(self.file.stem, run)

    def run(self, dag_id: str) -> tuple[RunResult, Counter[str]]:
        """Run a DAG of the recipe while the clock stands; its rows, too."""
        before = self.rows()
        run = self.finish(self.start(dag_id, "{}", "", "standing"))
        return run, self.rows() - before

    def handle(self, dag_id: str | None = None) -> RunResult:
        """Run the handler, which has to succeed and to cost what the page says."""
        run, rows = self.run(dag_id or self.file.stem)
        assert run.state == "success", run.log
        assert rows == self.costs
        return run


@pytest.fixture(scope="module")
def broker(duewheel_databases: Databases, duewheel_airflow: Airflow) -> Iterator[BrokerInTest]:
    """The broker of all recipes, whose clock stands, with the page's table."""
    with (
        pytest.MonkeyPatch.context() as environment,
        duewheel_databases.fresh() as dsn,
        BrokerInTest(dsn, airflow=duewheel_airflow, environment=environment) as broker,
    ):
        execute(dsn, TABLE)
        yield broker


@pytest.fixture(scope="module")
def home(broker: BrokerInTest, tmp_path_factory: pytest.TempPathFactory) -> AirflowHome:
    """The Airflow of all recipes."""
    orders_db = connection_json(broker.dsn, conn_type="postgres")
    return AirflowHome(tmp_path_factory.mktemp("cookbook"), broker.dsn, AIRFLOW_CONN_ORDERS_DB=orders_db)


@pytest.fixture
def recipe(request: pytest.FixtureRequest, broker: BrokerInTest, home: AirflowHome) -> Recipe:
    """The recipe that the test is about."""
    return Recipe(request.param, broker, home)


def about(title: str) -> pytest.MarkDecorator:
    """Give a test the recipe with this heading."""
    return pytest.mark.parametrize("recipe", [title], indirect=True, ids=[""])


def cancelled(broker: BrokerInTest, *numbers: int) -> list[int]:
    """The orders among these that were cancelled."""
    found = "select number from orders where cancelled_at is not null and number = any (%s) order by number"
    return [number for (number,) in execute(broker.dsn, found, list(numbers))]


@about("Event or timeout")
def test_event_or_timeout(recipe: Recipe, broker: BrokerInTest) -> None:
    for number in ("4711", "4721", "4722"):
        recipe.step("The order is placed", **{"4711": number})
    assert recipe.step("The order is paid") == [("recalled",)]
    broker.advance(minutes=30)
    recipe.handle()
    assert cancelled(broker, 4711, 4721, 4722) == [4721, 4722]
    # It was too late: the order is not paid.
    assert recipe.step("The order is paid", **{"4711": "4721"}) == [("already_released",)]
    paid = "select number from orders where paid_at is not null and number in (4711, 4721)"
    assert execute(broker.dsn, paid) == [(4711,)]


@about("Remind, then cancel")
def test_remind_then_cancel(recipe: Recipe, broker: BrokerInTest) -> None:
    for number in ("4712", "4731"):
        recipe.step("The order is placed", **{"4712": number})
    broker.advance(days=1)
    reminded = recipe.handle()
    assert sorted(re.findall(r"mail to the buyer of (\d+)", reminded.log)) == ["4712", "4731"]
    # The cancellation, and the reminder.
    assert recipe.step("The order is paid") == [(1, 1)]
    broker.advance(days=2)
    recipe.handle()
    assert {each.tag: each.recalled for each in broker.find_key("payment", "4712")} == {
        "remind": False,
        "cancel": True,
    }
    assert cancelled(broker, 4712, 4731) == [4731]


@about("Debounce")
def test_debounce(recipe: Recipe, broker: BrokerInTest) -> None:
    edit = "The document is edited"
    assert recipe.step(edit, **{"17": "18"}) == [("sent",)]
    assert recipe.step(edit) == [("sent",)]
    broker.advance(seconds=20)
    assert recipe.step(edit) == [("replaced",)]
    assert recipe.step(edit, **{"17": "19"}) == [("sent",)]
    broker.advance(seconds=20)
    assert recipe.step(edit, replace="keep") == [("kept",)]
    assert recipe.handle().tasks["index"].xcom == ["doc-18"]
    broker.advance(seconds=10)
    assert sorted(recipe.handle().tasks["index"].xcom) == ["doc-17", "doc-19"]


class Receiver(BaseHTTPRequestHandler):
    """Answers a path with the status that it names, at its first call, and then with 200."""

    calls: ClassVar[list[tuple[str, str]]] = []

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        status = 200 if self.path in dict(self.calls) else int(self.path[1:])
        self.calls.append((self.path, self.headers["Idempotency-Key"]))
        self.send_response(status)
        if status == HTTPStatus.SERVICE_UNAVAILABLE:
            self.send_header("Retry-After", "90")
        self.end_headers()


@contextmanager
def receiver() -> Iterator[str]:
    """The address of a server on this machine that webhooks can call."""
    with HTTPServer(("127.0.0.1", 0), Receiver) as server, beside() as begin:
        begin(server.serve_forever)
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


@about("Retry an HTTP call")
def test_retry_an_http_call(recipe: Recipe, broker: BrokerInTest) -> None:
    with receiver() as address:
        for status in (200, 404, 429, 503):
            recipe.step("Something happens", **{"https://shop.example/hook": f"{address}/{status}"})
        called = []
        for seconds in (0, 10, 79, 1):
            before = len(Receiver.calls)
            broker.advance(seconds=seconds)
            recipe.handle()
            called.append(sorted(path for path, _ in Receiver.calls[before:]))
    assert called == [["/200", "/404", "/429", "/503"], ["/429"], [], ["/503"]]
    assert len(set(Receiver.calls)) == 4
    (dead,) = broker.dead_letters("call-webhooks")
    assert dead.reason == "404 Not Found"


@about("Expire a reservation")
def test_expire_a_reservation(recipe: Recipe, broker: BrokerInTest) -> None:
    for basket in ("basket-7", "basket-8", "basket-9"):
        assert len(recipe.step("Pieces are reserved", **{"basket-9": basket})) == 1
    assert recipe.step("Pieces are reserved", **{">= 2": ">= 1000"}) == []
    assert recipe.step("The pieces are bought", **{"basket-9": "basket-8"}) == [("recalled",)]
    broker.advance(minutes=5)
    recipe.step("The customer needs more time")
    for minutes, pieces in ((5, 96), (5, 98)):
        broker.advance(minutes=minutes)
        recipe.handle()
        assert execute(broker.dsn, "select pieces from stock") == [(pieces,)]
    assert recipe.step("The pieces are bought") == [("already_released",)]


@about("SLA of another DAG")
def test_sla_of_another_dag(recipe: Recipe, broker: BrokerInTest) -> None:
    recipe.handle("watch_sales")
    loaded, rows = recipe.run("load_sales")
    assert loaded.tasks["in_time"].xcom == "recalled"
    # The load, and the recall.
    assert rows == {"runs": 1, "tasks": 2}
    broker.advance(hours=5)
    assert "not loaded" not in recipe.handle("sales_late").log

    recipe.handle("watch_sales")
    broker.advance(hours=5)
    assert "not loaded in time: sales-2" in recipe.handle("sales_late").log
    late, _ = recipe.run("load_sales")
    assert late.tasks["in_time"].xcom == "already_released"


@about("Saga with a deadline")
def test_saga_with_a_deadline(recipe: Recipe, broker: BrokerInTest) -> None:
    def states(run: RunResult) -> list[str]:
        return [run.tasks[name].state for name in ("confirm", "cancel_hotel", "cancel_flight")]

    def run_until_waiting(then: Callable[[], object]) -> RunResult:
        before = recipe.rows()
        run = recipe.start()
        until(lambda: broker.list_messages("trips").messages, "the trip to wait for its payment")
        then()
        ended = recipe.finish(run)
        assert recipe.rows() - before == recipe.costs
        return ended

    paid = run_until_waiting(lambda: recipe.step("The trip is paid"))
    assert states(paid) == ["success", "skipped", "skipped"]
    unpaid = run_until_waiting(lambda: broker.advance(minutes=15))
    assert states(unpaid) == ["skipped", "success", "success"]
    assert recipe.step("The trip is paid") == [("too_late",)]

    step = "def book_hotel(): "
    recipe.file.write_text(recipe.file.read_text().replace(f"{step}...", f"{step}raise RuntimeError"))
    failed, _ = recipe.run("book_trip")
    assert (failed.state, states(failed)) == ("failed", ["upstream_failed", "success", "success"])


def test_every_recipe_is_tested() -> None:
    titles = {
        mark.args[1][0]
        for test in globals().values()
        for mark in getattr(test, "pytestmark", [])
        if mark.name == "parametrize"
    }
    assert titles == RECIPES.keys() - {"Variations"}
