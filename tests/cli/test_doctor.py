"""`duewheel doctor`: each fault is made, and found with what to do."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import psycopg2
import pytest
from tests.acting import SECOND, send
from tests.cli.conftest import Run
from tests.logins import as_user, login
from tests.waiting import ask, connected

from duewheel.cli.doctor_airflow import Use, uses_of
from duewheel.cli.doctor_broker import clock_finding, notifications_finding
from duewheel.store import Broker


def told(run: Run, *arguments: str, status: int = 0) -> dict[str, dict[str, str]]:
    """The checks by name; fails where the exit status is another."""
    result = run("doctor", *arguments, "--json")
    assert result.exit_code == status, result.output
    document = json.loads(result.stdout)
    assert document["healthy"] is (status == 0)
    return {each["check"]: each for each in document["checks"]}


def test_a_broker_that_works_has_no_error(run: Run, broker: Broker) -> None:
    broker.create_topic("t")
    found = told(run)
    assert list(found) == [
        *("connection", "schema", "rights", "wheel", "upkeep"),
        *("clock", "notifications", "settings", "airflow"),
    ]
    # The server of the tests may lose messages, and no wheel turns.
    faults = {name for name, each in found.items() if each["status"] != "ok"}
    assert faults <= {"wheel", "settings"}
    assert found["airflow"]["says"] == "left out because Airflow is not set up here"

    lines = run("doctor").stdout.splitlines()
    assert "ok       clock: the server's clock and the clock here agree within a second" in lines
    place = lines.index("warning  wheel: no wheel turns: only consumers release messages")
    assert lines[place + 1].startswith("         Start Airflow's triggerer")

    with psycopg2.connect(broker.dsn, application_name="duewheel wheel on here:1") as connection:
        wheel = told(run)["wheel"]
    connection.close()
    assert wheel["status"] == "ok"
    assert wheel["says"].startswith("turns on here:1 since ")


def test_an_address_or_a_login_that_does_not_do(run: Run, broker: Broker) -> None:
    found = told(run, "--dsn", "host=127.0.0.1 port=1 dbname=x", status=1)
    assert found["connection"]["status"] == "error"
    assert "cannot be reached" in found["connection"]["says"]
    assert list(found) == ["connection", "airflow"]

    found = told(run, "--dsn", login(broker.dsn, None), status=1)
    assert found["rights"]["status"] == "error"
    assert "duewheel_consumer" in found["rights"]["says"]
    # Nothing is wrong with the schema.
    assert "upgrade" not in found["rights"]["advice"]

    # A login that only sends has no fault, and what it may not see is left out.
    found = told(run, "--dsn", login(broker.dsn, "duewheel_producer"))
    assert (found["rights"]["status"], found["rights"]["says"]) == ("ok", "the login has duewheel_producer")
    assert found["wheel"]["status"] == "warning"
    assert found["wheel"]["says"].startswith("left out: ")


@pytest.mark.owner
def test_a_database_in_which_something_is_wrong(run: Run, broker: Broker) -> None:
    with connected(as_user(broker.dsn, "postgres")) as connection:
        ask(connection, f"alter database {connection.info.dbname} set track_activities = off")
    with connected(broker.dsn) as connection:
        ask(connection, "update duewheel.broker set maintained_at = clock_timestamp() - interval '3 h'")
        found = told(run)
        assert found["settings"]["status"] == found["upkeep"]["status"] == "warning"
        assert "track_activities is off" in found["settings"]["says"]
        assert "the limit is two hours ago" in found["upkeep"]["says"]

        broker.create_topic("t")
        send(broker, "")
        ask(connection, "set session_replication_role = replica")
        back = "deliver_at = deliver_at - interval '10 s', born_at = born_at - interval '20 s'"
        ask(connection, f"update duewheel.message set {back}")
        says = told(run, status=1)["wheel"]["says"]
        assert says == "messages that are due were not released on t; 0 wheels connected"

        ask(connection, "update duewheel.broker set functions_checksum = 'other'")
        says = told(run, status=1)["schema"]["says"]
        assert "the functions in the database are not those of this program" in says

        ask(connection, "drop schema duewheel cascade")
        schema = told(run, status=1)["schema"]
        assert schema["status"] == "error"
        assert "duewheel db upgrade" in schema["says"]


def test_notifications_and_clocks_have_a_limit() -> None:
    assert notifications_finding(0.49).status == "ok"
    finding = notifications_finding(0.5)
    assert (finding.status, "50% full" in finding.says) == ("warning", True)
    assert "pg_terminate_backend" in finding.advice

    here = datetime(2026, 1, 5, tzinfo=UTC)
    for off in (SECOND, -SECOND):
        assert clock_finding(here, here + off, here).status == "ok"
    for off, says in ((2 * SECOND, "2.0 s ahead of"), (-90 * SECOND, "90.0 s behind")):
        found = clock_finding(here, here + off, here)
        assert found.status == "warning"
        assert found.says.startswith(f"the server's clock is {says} the clock here")


def test_what_a_stored_dag_names() -> None:
    """A name with a template is known when its task runs, and not before."""
    watcher = {
        "classpath": "duewheel.triggers.timing_wheel.TimingWheelTrigger",
        "kwargs": {"topic": "watched", "group": "g", "duewheel_conn_id": "other"},
    }
    sends = {"_task_module": "duewheel.operators.send", "task_type": "SendDelayMessageOperator"}
    makes = {"_task_module": "duewheel.operators.topic", "task_type": "CreateTopicOperator"}
    tasks = [
        {**sends, "topic": "orders"},
        {**sends, "partial_kwargs": {"topic": "mapped"}},
        {**sends, "topic": "{{ params.topic }}"},
        {"_task_module": "other", "topic": "not-ours"},
        {**makes, "topic": "orders"},
    ]
    stored = {
        "dag": {
            "timetable": {"asset": {"watchers": [{"trigger": watcher}]}},
            "tasks": [{"__var": task} for task in tasks],
        }
    }
    named = Use("d", "duewheel_default", "orders", None, makes_topic=True)
    assert uses_of("d", stored) == [
        Use("d", "other", "watched", "g", makes_topic=False),
        named,
        Use("d", "duewheel_default", "mapped", None, makes_topic=False),
        named,
    ]
