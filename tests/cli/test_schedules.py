"""Schedules on the command line."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from tests.cli.conftest import Run, RunJson, refusal
from tests.waiting import ask

from duewheel.store import Broker


def test_d18_schedule_is_added_listed_paused_resumed_and_removed(
    run: Run, run_json: RunJson, broker: Broker
) -> None:
    broker.create_topic("chores")
    assert run("schedule list").stdout == "There are no schedules.\n"
    add = "schedule create clean-up files --topic chores --key c --property a=b"
    daily = "--cron '0 5 * * *' --timezone Europe/Berlin --misfire skip"
    added = run_json(f"{add} {daily}")
    assert (added["cron"], added["timezone"], added["misfire"]) == ("0 5 * * *", "Europe/Berlin", "skip")
    assert (added["body"], added["key"]) == ("files", "c")
    assert added["properties"] == {"a": "b", "content-type": "text/plain; charset=utf-8"}
    assert datetime.fromisoformat(added["next_at"]) - datetime.now(UTC) < timedelta(hours=26)
    assert added.pop("outcome") == "created"
    assert run_json(f"{add} {daily}") == {"outcome": "unchanged", **added}
    assert run_json("schedule list") == [added]

    assert run("schedule pause clean-up").exit_code == 0
    (paused,) = run_json("schedule list")
    assert (paused["paused"], paused["next_at"]) == (True, None)
    assert run("schedule resume clean-up").exit_code == 0
    assert run_json("schedule list") == [added]
    for refused in (
        f"{add} --cron '0 5 * * *'",
        "schedule create s x --topic chores --cron '0 25 * * *'",
        "schedule create s x --topic chores --cron '0 5 * * *' --timezone Mars/Olympus",
        "schedule create s x --topic nowhere --every 1h",
        *("schedule pause s", "schedule resume s", "schedule delete s"),
    ):
        refusal(run(refused))
    assert run_json("schedule delete clean-up") == {"outcome": "deleted", "name": "clean-up"}
    assert run_json("schedule list") == []


def test_d18_message_of_an_interval_comes(run: Run, run_json: RunJson, broker: Broker) -> None:
    broker.create_topic("chores")
    start_at = (datetime.now(UTC) + timedelta(minutes=30)).isoformat()
    added = run("schedule create push - --topic chores --every 1h --start-at", start_at, stdin=b"\xff")
    assert added.stdout.startswith("Schedule push is created: it sends next at 20")
    assert "1h" in run("schedule list").stdout
    with broker.connection() as connection:
        ask(connection, "update duewheel.schedule set next_at = clock_timestamp()")
    broker.advance_schedules()
    (message,) = run_json("message receive --topic chores --group g --wait 30s")
    assert message["body"] == {"base64": "/w=="}
    assert message["properties"]["schedule"] == "push"
