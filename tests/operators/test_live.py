"""Airflow with all its parts: what only a scheduler, a triggerer and workers of their own can show."""

from __future__ import annotations

import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from tests.proof.waiting import PATIENCE_SECONDS

from duewheel.cli.demo.airflow_api import AirflowApi
from duewheel.cli.demo.airflow_standalone import USER, AirflowStandalone, Settings, free_port
from duewheel.store import Broker, EmbeddedPostgres

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.timeout(600)]

DAGS = Path(__file__).parent / "live_dags.py"
DAG_IDS = ("killed_live", "side_by_side", "refused", "tagged")


def until(happened: Callable[[], object], airflow: AirflowStandalone) -> None:
    """Return when ``happened()`` is true: the parts of Airflow give no sign of their own."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not happened():
        airflow.check()
        assert time.monotonic() < end, f"{happened.__name__} did not come true"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def pipes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the tasks find the pipes over which they are told to go on."""
    return tmp_path_factory.mktemp("pipes")


@pytest.fixture(scope="module")
def broker(fresh_database: Callable[[], tuple[str, str]]) -> Iterator[Broker]:
    """The broker of the DAGs."""
    with Broker(fresh_database()[1]) as broker:
        for topic in ("killed", "wide", "tagged"):
            broker.create_topic(topic)
        broker.consumer("wide", "everyone", mode="broadcasting", name="one")
        yield broker


@pytest.fixture(scope="module")
def airflow(
    broker: Broker, pipes: Path, postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AirflowStandalone]:
    """All parts of Airflow, which know the DAGs."""
    home = tmp_path_factory.mktemp("airflow")
    (home / "dags").mkdir()
    shutil.copy(DAGS, home / "dags")
    address = postgres.ensure_database("airflow_live")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DUEWHEEL_TEST_DIRECTORY", str(pipes))
        standalone = AirflowStandalone(
            Settings(
                home=home,
                database_dsn=address,
                port=free_port(),
                dags_folder=home / "dags",
                broker_dsn=broker.dsn,
                password=secrets.token_hex(8),
            )
        )
    api = AirflowApi(standalone.settings.url, USER, standalone.settings.password)
    try:
        standalone.migrate(threading.Event())
        standalone.start()
        until(lambda: not standalone.unhealthy(), standalone)
        until(lambda: all(api.knows_dag(dag_id) for dag_id in DAG_IDS), standalone)
        yield standalone
    finally:
        standalone.stop()


def runs(airflow: AirflowStandalone, dag_id: str) -> dict[str, int]:
    """How many runs of the DAG are in each state."""
    api = AirflowApi(airflow.settings.url, USER, airflow.settings.password)
    return api.run_states(dag_id, since="2000-01-01T00:00:00Z")


def states(broker: Broker, message_id: str) -> list[str]:
    """What became of a message for the group ``g``."""
    return [entry.state for entry in broker.history(message_id) if entry.consumer_group == "g"]


def test_x09_a_worker_that_is_lost_hands_its_messages_to_the_next_try(
    airflow: AirflowStandalone, broker: Broker
) -> None:
    sent = broker.send("killed", b"x", delay=timedelta(milliseconds=200), key="4711")
    until(lambda: runs(airflow, "killed_live").get("success"), airflow)
    # One lease, one attempt: the second try took it over and did not wait for its end.
    assert states(broker, sent.message_id) == ["Inflight", "Acked"]
    assert runs(airflow, "killed_live") == {"success": 1}


def test_a_group_has_as_many_runs_as_its_dag_allows(
    airflow: AirflowStandalone, broker: Broker, pipes: Path
) -> None:
    keys = [str(number) for number in range(3)]
    for key in keys:
        os.mkfifo(pipes / f"go_{key}")
        broker.send("wide", b"x", delay=timedelta(milliseconds=200), key=key)

    def all_are_held() -> bool:
        (bell,) = broker.doorbells(["wide"], ["g"])
        return len(bell.holders) == len(keys)

    until(all_are_held, airflow)
    for key in keys:
        (pipes / f"go_{key}").write_text("go")
    until(lambda: runs(airflow, "side_by_side").get("success", 0) >= len(keys), airflow)
    # A group that the broker refuses has silenced nobody, and started nothing.
    assert runs(airflow, "refused") == {}


def test_d12_messages_of_other_tags_start_no_run(airflow: AirflowStandalone, broker: Broker) -> None:
    for tag in ("open", "open", "open"):
        broker.send("tagged", b"x", delay=timedelta(milliseconds=200), tag=tag)
    paid = broker.send("tagged", b"x", delay=timedelta(seconds=3), tag="paid")
    until(lambda: runs(airflow, "tagged").get("success"), airflow)
    assert states(broker, paid.message_id)[-1] == "Acked"
    assert runs(airflow, "tagged") == {"success": 1}
