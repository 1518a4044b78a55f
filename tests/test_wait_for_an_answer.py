"""docs/how-to/wait-for-an-answer.md: its recipes are files of a DAGs folder, and each is answered."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from click.testing import CliRunner
from tests.airflow_runs import AirflowHome, RunResult
from tests.conftest import execute
from tests.pages import examples
from tests.waiting import until

from duewheel.cli.main import main
from duewheel.store import Broker
from duewheel.store.values.stored_messages import ListedMessage

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.timeout(1200)]

PAGE = (Path(__file__).parents[1] / "docs" / "how-to" / "wait-for-an-answer.md").read_text(encoding="utf-8")
FILES = {
    name: text
    for block in examples(PAGE, "py")
    for name, text in re.findall(r"\A# (\w+\.py)\n(.*)\Z", block, re.DOTALL)
}
MAKE, APPROVE = examples(PAGE, "sql")


class Recipes:
    """The page's files in a DAGs folder, and the broker of their waits."""

    def __init__(self, directory: Path, dsn: str) -> None:
        self.dsn = dsn
        self.broker = Broker(dsn)
        self.home = AirflowHome(directory, dsn, PYTHONPATH=str(directory / "dags"))
        for name, text in FILES.items():
            (self.home.dags / name).write_text(text)

    def module(self, name: str) -> SimpleNamespace:
        """A file that is no DAG."""
        scope: dict[str, Any] = {}
        exec(FILES[f"{name}.py"], scope)
        return SimpleNamespace(**scope)

    def run(self, name: str, *answers: Callable[[str], object], left_out: str = "") -> RunResult:
        """Run a DAG; each answer is given when the run waits, and gets the key."""
        file = self.home.dags / f"{name}.py"
        process = self.home.start_file(file, name, "{}", left_out)
        answered: set[str] = set()
        for answer in answers:
            waiting = until(
                lambda: self._waiting(answered) or not psutil.pid_exists(process.pid), "the run to wait"
            )
            assert isinstance(waiting, ListedMessage), self.home.finish(name, process).log
            answered.add(waiting.message_id)
            assert waiting.key is not None
            answer(waiting.key)
        run = self.home.finish(name, process)
        assert run.state == "success", run.log
        return run

    def _waiting(self, answered: set[str]) -> ListedMessage | None:
        found = self.broker.list_messages("approvals").messages
        return next((each for each in found if each.message_id not in answered), None)


@pytest.fixture(scope="module")
def recipes(
    tmp_path_factory: pytest.TempPathFactory, fresh_database: Callable[[], tuple[str, str]]
) -> Iterator[Recipes]:
    _, dsn = fresh_database()
    recipes = Recipes(tmp_path_factory.mktemp("airflow"), dsn)
    execute(dsn, "create table orders (number bigint primary key)")
    execute(dsn, "insert into orders values (4711)")
    execute(dsn, MAKE)
    with recipes.broker:
        yield recipes


def test_every_example_is_a_file() -> None:
    assert len(FILES) == len(examples(PAGE, "py"))


def test_x26_an_approval_in_the_transaction_of_an_update(recipes: Recipes) -> None:
    run = recipes.run("approve_order", lambda _: execute(recipes.dsn, APPROVE))
    assert run.tasks["approval"].xcom["answer"] == {"approved": True}
    assert [run.tasks[task].state for task in ("ship", "refuse", "escalate")] == [
        "success",
        "skipped",
        "skipped",
    ]
    assert execute(recipes.dsn, "select approved_at is not null from orders") == [(True,)]
    (link,) = (value for key, value in run.tasks["approval"].links.items() if "message" in key.lower())
    assert run.tasks["approval"].xcom["message_id"] in link


def test_x26_a_timeout_takes_its_branch(recipes: Recipes) -> None:
    run = recipes.run(
        "approve_order",
        lambda key: recipes.broker.reschedule_key("approvals", key, delay=timedelta(0)),
    )
    assert run.tasks["approval"].xcom["outcome"] == "timed_out"
    assert [run.tasks[task].state for task in ("ship", "refuse", "escalate")] == [
        "skipped",
        "skipped",
        "success",
    ]
    assert recipes.broker.answer_key("approvals", "order-4711").outcome.value == "too_late"


def test_a_recall_takes_no_branch(recipes: Recipes) -> None:
    run = recipes.run("approve_order", lambda key: recipes.broker.recall_key("approvals", key))
    assert run.tasks["approval"].xcom["outcome"] == "recalled"
    assert {run.tasks[task].state for task in ("ship", "refuse", "escalate")} == {"skipped"}


def test_the_callback_of_an_external_job(recipes: Recipes) -> None:
    callback = recipes.module("callback")
    assert callback.finished(recipes.broker, "too early", {}) == 200
    statuses = []

    def finish(key: str) -> None:
        statuses.extend(callback.finished(recipes.broker, key, {"file": name}) for name in ("a", "b"))

    run = recipes.run("run_job", finish)
    assert statuses == [200, 200]
    assert run.tasks["load"].xcom == "a"
    assert "callback=https://shop.example/jobs/run_job/manual__" in run.log


def test_an_approval_from_the_shell(recipes: Recipes) -> None:
    def clerk(_: str) -> None:
        (line,) = re.findall(r"^    duewheel (.*)$", PAGE, re.MULTILINE)
        done = CliRunner().invoke(main, shlex.split(line), env={"DUEWHEEL_DSN": recipes.dsn})
        assert done.stdout == "answered\n"

    run = recipes.run("approve_order", clerk)
    assert run.tasks["approval"].xcom["answer"] == {"approved": True, "by": "ann"}
    assert run.tasks["ship"].state == "success"


def test_the_answer_of_a_child_dag(recipes: Recipes) -> None:
    children = []

    def run_child(key: str) -> None:
        conf = json.dumps({"answer_to": key})
        process = recipes.home.start_file(recipes.home.dags / "child.py", "child", conf)
        children.append(recipes.home.finish("child", process))

    # The child is run here, as dag.test() starts no other DAG.
    parent = recipes.run("parent", run_child, left_out="start")
    assert children[0].tasks["answer"].xcom == "answered"
    assert parent.tasks["answer"].xcom["answer"] == 42
