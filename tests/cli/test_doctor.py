"""`duewheel doctor`: each fault is made, and found with what to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import psycopg2
import pytest
from click.testing import Result
from tests.logins import as_user, login
from tests.waiting import ask, connected

from duewheel.cli.doctor_airflow import Use, uses_of
from duewheel.cli.doctor_broker import clock_finding, notifications_finding
from duewheel.store import Broker

Run = Callable[..., Result]
SECOND = timedelta(seconds=1)


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
        *(
            "connection",
            "schema",
            "rights",
            "wheel",
            "upkeep",
            "clock",
            "notifications",
            "settings",
            "airflow",
        )
    ]
    # The server of the tests may lose messages, and no wheel turns.
    faults = {name for name, each in found.items() if each["status"] != "ok"}
    assert faults <= {"wheel", "settings"}
    assert found["airflow"]["says"] == "left out, as Airflow is not set up here"


def test_each_check_is_a_line_and_advice_stands_below(run: Run, broker: Broker) -> None:
    lines = run("doctor").stdout.splitlines()
    assert "ok       clock: the server's clock and the clock here agree within a second" in lines
    place = lines.index("warning  wheel: no wheel turns: only consumers release messages")
    assert lines[place + 1].startswith("         Start Airflow's triggerer")


def test_a_server_that_is_away(run: Run) -> None:
    found = told(run, "--dsn", "host=127.0.0.1 port=1 dbname=x", status=1)
    assert found["connection"]["status"] == "error"
    assert "cannot be reached" in found["connection"]["says"]
    assert list(found) == ["connection", "airflow"]


def test_a_database_without_the_schema(run: Run, broker: Broker) -> None:
    with connected(broker.dsn) as connection:
        ask(connection, "drop schema duewheel cascade")
    found = told(run, status=1)
    assert found["schema"]["status"] == "error"
    assert "duewheel db upgrade" in found["schema"]["says"]


@pytest.mark.owner
def test_functions_of_another_version(run: Run, broker: Broker) -> None:
    with connected(broker.dsn) as connection:
        ask(connection, "update duewheel.broker set functions_checksum = 'other'")
    found = told(run, status=1)
    assert "the functions in the database are not those of this program" in found["schema"]["says"]


def test_a_login_without_a_role(run: Run, broker: Broker) -> None:
    found = told(run, "--dsn", login(broker.dsn, None), status=1)
    assert found["rights"]["status"] == "error"
    assert "duewheel_consumer" in found["rights"]["says"]
    # Nothing is wrong with the schema.
    assert "upgrade" not in found["rights"]["advice"]


def test_a_login_that_only_sends_is_no_fault_and_what_it_may_not_see_is_left_out(
    run: Run, broker: Broker
) -> None:
    found = told(run, "--dsn", login(broker.dsn, "duewheel_producer"))
    assert (found["rights"]["status"], found["rights"]["says"]) == ("ok", "the login has duewheel_producer")
    assert found["wheel"]["status"] == "warning"
    assert found["wheel"]["says"].startswith("left out: ")


def test_the_wheel_that_turns_is_named(run: Run, broker: Broker) -> None:
    with psycopg2.connect(broker.dsn, application_name="duewheel wheel on here:1") as connection:
        found = told(run)
    connection.close()
    assert found["wheel"]["status"] == "ok"
    assert found["wheel"]["says"].startswith("turns on here:1 since ")


@pytest.mark.owner
def test_messages_that_nobody_releases(run: Run, broker: Broker) -> None:
    broker.create_topic("t")
    broker.send("t", b"", delay=timedelta(0))
    with connected(broker.dsn) as connection:
        ask(connection, "set session_replication_role = replica")
        ask(
            connection,
            "update duewheel.message set deliver_at = deliver_at - interval '10 s',"
            " born_at = born_at - interval '20 s'",
        )
    found = told(run, status=1)
    assert found["wheel"]["says"] == "messages that are due were not released on t; 0 wheels connected"


@pytest.mark.owner
def test_upkeep_that_was_missed(run: Run, broker: Broker) -> None:
    with connected(broker.dsn) as connection:
        ask(connection, "update duewheel.broker set maintained_at = clock_timestamp() - interval '3 h'")
    found = told(run)
    assert found["upkeep"]["status"] == "warning"
    assert "the limit is two hours ago" in found["upkeep"]["says"]


@pytest.mark.owner
def test_a_queue_of_notifications_that_somebody_keeps_full() -> None:
    assert notifications_finding(0.49).status == "ok"
    finding = notifications_finding(0.5)
    assert (finding.status, "50% full" in finding.says) == ("warning", True)
    assert "pg_terminate_backend" in finding.advice


def test_settings_that_may_lose_messages(run: Run, broker: Broker) -> None:
    with connected(as_user(broker.dsn, "postgres")) as connection:
        ask(connection, f"alter database {connection.info.dbname} set track_activities = off")
    found = told(run)
    assert found["settings"]["status"] == "warning"
    assert "track_activities is off" in found["settings"]["says"]


@pytest.mark.parametrize(
    ("off", "says"),
    [
        (2 * SECOND, "the server's clock is 2.0 s ahead of the clock here"),
        (-90 * SECOND, "the server's clock is 90.0 s behind the clock here"),
        (SECOND, None),
        (-SECOND, None),
    ],
)
def test_clocks_that_differ(off: timedelta, says: str | None) -> None:
    here = datetime(2026, 1, 5, tzinfo=UTC)
    found = clock_finding(here, here + off, here)
    assert found.status == ("ok" if says is None else "warning")
    assert says is None or found.says.startswith(says)


def test_what_a_stored_dag_names() -> None:
    """A name with a template is known when its task runs, and not before."""
    watcher = {
        "classpath": "duewheel.triggers.timing_wheel.TimingWheelTrigger",
        "kwargs": {"topic": "watched", "group": "g", "duewheel_conn_id": "other"},
    }
    sends = {"_task_module": "duewheel.operators.send", "task_type": "SendDelayMessageOperator"}
    stored = {
        "dag": {
            "timetable": {"asset": {"watchers": [{"trigger": watcher}]}},
            "tasks": [
                {"__var": {**sends, "topic": "orders"}},
                {"__var": {**sends, "partial_kwargs": {"topic": "mapped"}}},
                {"__var": {**sends, "topic": "{{ params.topic }}"}},
                {"__var": {"_task_module": "other", "topic": "not-ours"}},
                {
                    "__var": {
                        "_task_module": "duewheel.operators.topic",
                        "task_type": "CreateTopicOperator",
                        "topic": "orders",
                    }
                },
            ],
        }
    }
    named = Use("d", "duewheel_default", "orders", None, makes_topic=True)
    assert uses_of("d", stored) == [
        Use("d", "other", "watched", "g", makes_topic=False),
        named,
        Use("d", "duewheel_default", "mapped", None, makes_topic=False),
        named,
    ]
