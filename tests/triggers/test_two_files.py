"""Files that watch one topic and group, each read by itself, as Airflow's DAG processor does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.acting import send
from tests.airflow_runs import AirflowHome
from tests.triggers.triggerers import Triggerers

from duewheel.store import Broker

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1200)]

WATCHING = """
from airflow.sdk import DAG
from duewheel.operators.due_messages import DueMessages

due = DueMessages("t", "g", {arguments})
dag = DAG("{name}", schedule=[due], is_paused_upon_creation=False)
"""
FILES = {"once": "ring_again=0.5", "again": "ring_again=0.5", "batch": "ring_again=0.5, min_messages=2"}


@pytest.fixture
def triggerers(tmp_path: Path, broker: Broker) -> Triggerers:
    """Each file is a bundle of its own, so that Airflow reads them one by one."""
    broker.create_topic("t")
    for name, arguments in FILES.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "watching.py").write_text(WATCHING.format(name=name, arguments=arguments))
    bundles = [
        {
            "name": name,
            "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle",
            "kwargs": {"path": str(tmp_path / name)},
        }
        for name in FILES
    ]
    home = AirflowHome(
        tmp_path, broker.dsn, AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST=json.dumps(bundles)
    )
    return Triggerers(home, tmp_path)


def watchers(triggerers: Triggerers) -> dict[str, int]:
    """The trigger of each asset."""
    return dict(
        triggerers.ask("select a.name, w.trigger_id from asset_watcher w join asset a on a.id = w.asset_id")
    )


def test_files_that_watch_one_group_keep_each_others_triggers(triggerers: Triggerers, broker: Broker) -> None:
    for name in FILES:
        triggerers.airflow("dags", "reserialize", "--bundle-name", name)
    known = watchers(triggerers)
    assert known.keys() == {"t/g?ring_again=0.5", "t/g?ring_again=0.5&min_messages=2"}
    for name in FILES:
        triggerers.airflow("dags", "reserialize", "--bundle-name", name)
        assert watchers(triggerers) == known

    def rang() -> set[str]:
        found = triggerers.ask("select a.name from asset_event e join asset a on a.id = e.asset_id")
        return {name for (name,) in found}

    with triggerers.start() as process:
        send(broker, "one")
        triggerers.until(process, lambda: len(rang()) == 1, "a ring for the first message")
        assert rang() == {"t/g?ring_again=0.5"}
        send(broker, "two")
        triggerers.until(process, lambda: rang() == set(known), "a ring for both messages")
