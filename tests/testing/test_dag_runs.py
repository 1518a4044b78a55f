"""Runs of DAGs on the broker of a test."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from airflow.sdk import DAG
from tests.airflow_runs import Airflow
from tests.operators.tasks import a_try

from duewheel.dags.inspect_returns import inspect_return
from duewheel.dags.place_orders import place_orders
from duewheel.dags.shop import TOPIC
from duewheel.operators.topic import CreateTopicOperator
from duewheel.operators.wait import WaitForAnswerOperator
from duewheel.sensors.due_messages import DueMessagesSensor
from duewheel.store import InvalidArgument
from duewheel.testing import BrokerInTest, dag_runs
from duewheel.testing.run_dag import end_waiting


@pytest.mark.long
@pytest.mark.airflow
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_run_has_a_process_of_its_own_on_the_tests_broker(
    duewheel: BrokerInTest, duewheel_airflow: Airflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duewheel_airflow, "home", dag_runs.AirflowHome)
    # As in a terminal of an Airflow in production: none of it is touched.
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "postgresql://nobody@nowhere.invalid/airflow")
    monkeypatch.setenv("AIRFLOW__SECRETS__BACKEND", "no.such.Backend")
    duewheel.advance(days=3)
    run = duewheel.run_dag(place_orders, conf={"orders": 2, "timeout_seconds": 60})
    assert run.state == "success"
    states = {name: task.state for name, task in run.tasks.items()}
    assert states == {"create_topic": "success", "place": "success"}
    assert run.tasks["place"].xcom == 2
    assert "Done. Returned value was: 2" in run.log
    assert sorted(message.key for message in duewheel.list_messages(TOPIC).messages) == ["1", "2"]


@pytest.mark.airflow
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_run_leaves_tasks_out_and_says_why_it_failed(
    duewheel: BrokerInTest, duewheel_airflow: Airflow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = duewheel.run_dag(inspect_return, conf={"parcel": "7"}, left_out="insp.*")
    assert (run.tasks["inspect"].state, run.tasks["inspect"].xcom) == ("success", None)

    duewheel.create_topic(TOPIC, message_type="FIFO")
    with pytest.raises(AssertionError, match=r"(?s)the run of place_orders ended as failed.*TopicExists"):
        duewheel.run_dag(place_orders)

    with DAG("made_in_a_test") as dag:
        CreateTopicOperator(task_id="make", topic="t", duewheel_conn_id="shop")
        CreateTopicOperator(task_id="make_later", topic="t", duewheel_conn_id="{{ params.shop }}")
    with pytest.raises(AssertionError, match="makes no DAG made_in_a_test at its top level"):
        duewheel.run_dag(dag)
    assert os.environ["AIRFLOW_CONN_SHOP"] == os.environ["AIRFLOW_CONN_DUEWHEEL_DEFAULT"]

    monkeypatch.setattr(dag_runs, "PATIENCE_SECONDS", 0.01)
    home = dag_runs.AirflowHome(tmp_path, duewheel_airflow.metadata)
    process = home.start_file(Path(place_orders.__wrapped__.__code__.co_filename))
    with pytest.raises(AssertionError, match="had not ended after"):
        home.finish("place_orders", process)
    assert process.returncode is not None


def test_no_sensor_waits_under_a_stopped_clock() -> None:
    with DAG("waiting") as dag:
        DueMessagesSensor(task_id="one", topic="t", group="g", deferrable=True)
        DueMessagesSensor.partial(task_id="each", group="g").expand(topic=["t", "u"])
    end_waiting(dag)
    assert dag.get_task("one").timeout == 0
    each = dag.get_task("each")
    mapped = each.unmap({"task_id": "each", "topic": "t", "group": "g", **each.partial_kwargs})
    assert mapped.timeout == 0


def test_a_wait_times_out_at_once_under_a_stopped_clock(duewheel: BrokerInTest) -> None:
    duewheel.create_topic("approvals")
    # No wheel goes by a clock that is ahead of the server's.
    duewheel.advance(days=3)
    with DAG("waiting") as dag:
        WaitForAnswerOperator(task_id="wait", topic="approvals", timeout="PT2H", key="k")
    end_waiting(dag)
    assert dag.get_task("wait").execute(a_try())["outcome"] == "timed_out"


@pytest.mark.parametrize("given", [Path("dags/orders.py"), lambda: None])
def test_a_value_that_is_not_a_dag_is_refused(given: object) -> None:
    with pytest.raises(InvalidArgument, match="give a DAG, or the function of a @dag"):
        dag_runs.declared(given)
