"""Every DAG file imports without errors or warnings and says what it does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from airflow.dag_processing.dagbag import DagBag

import duewheel.dags

FOLDER = Path(duewheel.dags.__path__[0]).resolve()
LIST = Path(__file__).parents[2] / "dags" / "README.md"
DAG_IDS = {
    "place_orders",
    "pay_orders",
    "cancel_unpaid_orders",
    "begin_reminders",
    "remind_customers",
    "end_reminders",
    "plan_reminders",
    "plan_clean_up",
    "clean_up_orders",
    "cancel_unpaid_orders_taskflow",
    "report_timeouts",
    "bill_customer",
    "send_invoices",
    "redrive_invoices",
    "hand_out_returns",
    "inspect_return",
    "place_order_with_airflows_sql",
    "pay_order_with_airflows_sql",
    "cancel_orders_with_airflows_sql",
}


@pytest.fixture(scope="module")
def dag_bag() -> DagBag:
    return DagBag(dag_folder=FOLDER)


def test_all_dags_import_without_errors_or_warnings(dag_bag: DagBag) -> None:
    assert dag_bag.import_errors == {}
    assert dag_bag.captured_warnings == {}
    assert set(dag_bag.dags) == DAG_IDS
    for dag in dag_bag.dags.values():
        assert dag.doc_md
        assert "example" in dag.tags


def test_a_watcher_rings_for_a_group_that_its_dag_consumes(dag_bag: DagBag) -> None:
    watching = set()
    for dag in dag_bag.dags.values():
        reads = {(getattr(task, "topic", None), getattr(task, "group", None)) for task in dag.tasks}
        for asset in dag.schedule if isinstance(dag.schedule, list) else [dag.schedule]:
            for watcher in getattr(asset, "watchers", ()):
                watching.add(dag.dag_id)
                assert (watcher.trigger.topic, watcher.trigger.group) in reads, dag.dag_id
    assert watching >= {"cancel_unpaid_orders", "cancel_unpaid_orders_taskflow", "clean_up_orders"}
    assert watching >= {"send_invoices", "remind_customers", "hand_out_returns"}


def test_an_order_has_30_minutes_unless_told_otherwise(dag_bag: DagBag) -> None:
    parameters = dag_bag.dags["place_orders"].params
    assert parameters["timeout_seconds"] == 30 * 60
    assert parameters["spread_seconds"] == 0


def test_every_file_is_listed(dag_bag: DagBag) -> None:
    files = {Path(dag.fileloc).name for dag in dag_bag.dags.values()}
    assert set(re.findall(r"\]\((\w+\.py)\)", LIST.read_text())) == files


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.py")), ids=lambda file: file.stem)
def test_an_example_imports_from_public_packages(file: Path) -> None:
    """Readers copy these files; the modules inside of the store and of the Spark side may move."""
    assert not re.findall(r"(?:from|import) duewheel\.(?:store|spark)\.[\w.]+", file.read_text())
