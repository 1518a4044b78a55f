"""`duewheel doctor` beside an Airflow: its triggerer, and what its DAGs name."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from tests.airflow_runs import AirflowHome
from tests.waiting import until

from duewheel.store import Broker

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.long]

DAG = """
from airflow.sdk import DAG, Asset, AssetWatcher
from duewheel.operators.send import SendDelayMessageOperator
from duewheel.operators.topic import CreateTopicOperator
from duewheel.triggers.timing_wheel import TimingWheelTrigger

watcher = AssetWatcher(name="w", trigger=TimingWheelTrigger(topic="there", group="readers"))
with DAG("named", schedule=[Asset("due", watchers=[watcher])]):
    SendDelayMessageOperator(task_id="mistyped", topic="ordrs", body="x")
    SendDelayMessageOperator.partial(task_id="mapped", topic="there").expand(body=["x", "y"])
    SendDelayMessageOperator(task_id="made_first", topic="made", body="x")
    CreateTopicOperator(task_id="makes", topic="made")
    SendDelayMessageOperator(task_id="elsewhere", topic="there", body="x", duewheel_conn_id="nowhere")
"""


@contextmanager
def triggerer(home: AirflowHome, log: Path) -> Iterator[None]:
    """A triggerer of this Airflow, ended by its process id."""
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "airflow", "triggerer", "--skip-serve-logs"],
            env=home.environment,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            yield
        finally:
            process.terminate()
            process.wait()


def test_it_names_what_dags_name_and_a_dead_triggerer(broker: Broker, tmp_path: Path) -> None:
    home = AirflowHome(tmp_path, broker.dsn)
    (home.dags / "named.py").write_text(DAG)
    subprocess.run([sys.executable, "-m", "airflow", "dags", "reserialize"], env=home.environment, check=True)

    def told() -> dict[str, list[tuple[str, str]]]:
        """The status of each check and what it says, by the name of the check."""
        command = [sys.executable, "-m", "duewheel.cli", "doctor", "--json", "--dsn", broker.dsn]
        done = subprocess.run(command, env=home.environment, capture_output=True, text=True, check=False)
        assert done.returncode in (0, 1), done.stderr
        found: dict[str, list[tuple[str, str]]] = {}
        for each in json.loads(done.stdout)["checks"]:
            found.setdefault(each["check"], []).append((each["status"], each["says"]))
        return found

    broker.create_topic("there")
    found = told()
    assert found["triggerer"] == [("error", "none has ever run")]
    assert found["dags (duewheel_default)"] == [
        ("warning", "topic 'made', which DAG named names, does not exist"),
        ("error", "topic 'ordrs', which DAG named names, does not exist"),
        ("warning", "group 'readers', which DAG named names, does not exist yet"),
    ]
    ((status, says),) = found["dags (nowhere)"]
    assert status == "error"
    assert "nowhere" in says

    for topic in ("made", "ordrs"):
        broker.create_topic(topic)
    broker.consumer("there", "readers")
    with (
        triggerer(home, tmp_path / "triggerer.log"),
        closing(sqlite3.connect(tmp_path / "airflow.db")) as jobs,
    ):
        query = "select 1 from job where job_type = 'TriggererJob' and state = 'running'"
        until(lambda: jobs.execute(query).fetchall(), "the triggerer to begin", pause_seconds=0.1)
        found = until(lambda: (now := told())["triggerer"][0][0] == "ok" and now, "the triggerer to be alive")
    assert [status for status, _ in found["dags (duewheel_default)"]] == ["ok"]
