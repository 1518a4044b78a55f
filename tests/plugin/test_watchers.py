"""The page's view Watchers: every DAG's, with what keeps one from ringing (X08)."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect
from tests.airflow_runs import connection_json
from tests.plugin.airflow_server import AirflowServer
from tests.plugin.browsing import logged_in, open_view

from duewheel.plugin.brokers import Brokers
from duewheel.plugin.watching import _problems
from duewheel.store import ConsumeMode
from duewheel.store.broker import Broker

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.airflow, pytest.mark.slow]

WATCHING = """
from airflow.sdk import DAG, Asset, AssetWatcher
from duewheel.triggers.timing_wheel import TimingWheelTrigger

def watch(dag_id, topic, group, **arguments):
    trigger = TimingWheelTrigger(topic, group, **arguments)
    asset = Asset(f"due_{dag_id}", watchers=[AssetWatcher(name="wheel", trigger=trigger)])
    return DAG(dag_id, schedule=[asset], is_paused_upon_creation=False)

right = watch("right", "watched", "canceller")
unassigned = watch("unassigned", "watched", "other")
mistyped = watch("mistyped", "wacthed", "canceller")
unknown = watch("unknown", "watched", "canceller", duewheel_conn_id="nowhere")
away = watch("away", "watched", "canceller", duewheel_conn_id="unreachable")
shared = watch("shared", "watched", "everybody")
paused = watch("paused", "watched", "resting")
"""


@pytest.fixture(scope="module")
def watching(airflow: AirflowServer, shop: Broker) -> Iterator[AirflowServer]:
    """The server, whose DAGs watch one topic; all but one are with a triggerer that lives."""
    shop.create_topic("watched")
    shop.consumer("watched", "everybody", mode=ConsumeMode.BROADCASTING, name="one")
    shop.consumer("watched", "resting")
    shop.pause_group("resting")
    file = airflow.home.dags / "watching.py"
    file.write_text(WATCHING)
    subprocess.run(
        [sys.executable, "-m", "airflow", "dags", "reserialize"],
        env=airflow.home.environment,
        check=True,
        capture_output=True,
    )
    with closing(sqlite3.connect(airflow.settings.home / "airflow.db", timeout=60)) as database, database:
        database.execute(
            "insert into job (job_type, state, hostname, latest_heartbeat, start_date)"
            " values ('TriggererJob', 'running', 'machine-7', ?, ?)",
            [datetime.now(UTC).isoformat(" ")] * 2,
        )
        database.execute("update trigger set triggerer_id = (select max(id) from job)")
        database.execute(
            "update trigger set triggerer_id = null where id = (select trigger_id from asset_watcher w"
            " join asset a on a.id = w.asset_id where a.name = 'due_unassigned')"
        )
        # Another triggerer in this database would take them over.
        database.execute("update job set latest_heartbeat = '2999-01-01 00:00:00+00:00'")
    yield airflow
    file.unlink()


def listed(airflow: AirflowServer, role: str = "viewer") -> dict[str, dict[str, Any]]:
    """The watchers by their DAG."""
    status, answer = airflow.call("GET", "/duewheel/api/watchers", role=role)
    assert status == 200, (airflow.settings.home / "api-server.log").read_text()[-6000:]
    assert not answer["more"]
    return {dag: one for one in answer["watchers"] for dag in one["dags"]}


def test_x08_a_watcher_says_why_it_cannot_ring(watching: AirflowServer) -> None:
    watchers = listed(watching)
    right = watchers["right"]
    assert (right["connection_id"], right["topic"], right["group"]) == (
        "duewheel_default",
        "watched",
        "canceller",
    )
    assert (right["asset"], right["name"], right["triggerer"]) == ("due_right", "wheel", "machine-7")
    assert right["problem"] is None
    problems = {
        "unassigned": "start `airflow triggerer`",
        "mistyped": "There is no topic wacthed: correct the name in the DAG",
        "unknown": "has the id nowhere: make it, or correct duewheel_conn_id",
        "away": "The broker's database does not answer",
        "shared": "Group everybody is broadcasting",
        "paused": "Group resting is paused",
    }
    for dag, said in problems.items():
        assert said in watchers[dag]["problem"], dag
    assert "secret" not in str(watchers)
    assert list(watchers)[-1] == "right", "those that cannot ring come first"


def test_x08_looking_at_watchers_subscribes_nobody(watching: AirflowServer, shop: Broker) -> None:
    listed(watching)
    assert not any(one.group in ("canceller", "other") for one in shop.groups() if one.topic == "watched")


def test_x08_the_last_ring_is_that_of_the_watcher(watching: AirflowServer) -> None:
    _, assets = watching.call("GET", "/api/v2/assets?name_pattern=due_right")
    (asset,) = assets["assets"]
    rings = []
    for group in ("canceller", "somebody else"):
        event = {"asset_id": asset["id"], "extra": {"payload": {"topic": "watched", "group": group}}}
        status, told = watching.call("POST", "/api/v2/assets/events", event)
        assert status == 200, told
        rings.append(datetime.fromisoformat(told["timestamp"]))
    assert datetime.fromisoformat(listed(watching)["right"]["rang_at"]) == rings[0]
    assert listed(watching)["mistyped"]["rang_at"] is None


def test_x08_a_broker_not_asked_in_time_is_not_shown_as_ringing(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_BUSY_BROKER", connection_json(dsn))
    monkeypatch.setattr("duewheel.plugin.brokers.TURN_TIMEOUT_SECONDS", 0.01)
    with closing(Brokers()) as brokers, brokers.lend("busy_broker"):
        monkeypatch.setattr("duewheel.plugin.watching.brokers", brokers)
        problems = _problems("busy_broker", [("t", "g")])
    assert "not known" in problems["t", "g"]


@pytest.mark.long
@pytest.mark.needs("chromium")
def test_x08_a_lingering_task_and_a_program_are_shown_waiting(
    airflow: AirflowServer, shop: Broker, shop_dsn: str, chromium: Browser
) -> None:
    shop.create_topic("quiet")
    with (
        Broker(shop_dsn) as of_task,
        Broker(shop_dsn) as of_program,
        of_task.push_consumer("quiet", "lingering", lambda _: "success", name="airflow:cancel/r/t/-1"),
        of_program.push_consumer("quiet", "staying", lambda _: "success", name="stay.py"),
        logged_in(chromium, airflow, "viewer") as page,
    ):
        open_view(page, airflow, "?view=leases")
        rows = page.get_by_role("region", name="Waiting consumers", exact=True).get_by_role("row")
        task, program = rows.filter(has_text="lingering"), rows.filter(has_text="staying")
        expect(task).to_contain_text("task")
        expect(task.get_by_role("link", name="airflow:cancel/r/t/-1")).to_be_visible()
        expect(program).to_contain_text("program")
        expect(program).to_contain_text("stay.py")
