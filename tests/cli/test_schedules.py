"""Schedules on the command line."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from click.testing import Result
from tests.waiting import ask

from duewheel.store import Broker

Run = Callable[..., Result]
RunJson = Callable[..., Any]


@pytest.fixture
def chores(broker: Broker) -> Broker:
    """A broker with the topic `chores`."""
    broker.create_topic("chores")
    return broker


@pytest.mark.usefixtures("chores")
def test_d18_schedule_is_added_listed_paused_resumed_and_removed(run: Run, run_json: RunJson) -> None:
    assert run("schedule", "list").stdout == "There are no schedules.\n"
    add = (
        "schedule",
        "add",
        "clean-up",
        '{"what": "files"}',
        "--topic",
        "chores",
        "--key",
        "c",
        "--property",
        "a=b",
    )
    daily = ("--cron", "0 5 * * *", "--timezone", "Europe/Berlin", "--misfire", "skip")
    added = run_json(*add, *daily)
    assert (added["cron"], added["timezone"], added["misfire"]) == ("0 5 * * *", "Europe/Berlin", "skip")
    assert (added["body"], added["key"]) == ('{"what": "files"}', "c")
    assert added["properties"] == {"a": "b", "content-type": "text/plain; charset=utf-8"}
    assert datetime.fromisoformat(added["next_at"]) - datetime.now(UTC) < timedelta(hours=26)
    assert added.pop("outcome") == "added"
    assert run_json(*add, *daily) == {"outcome": "unchanged", **added}
    assert run(*add, *daily[:2]).exit_code == 1
    assert run_json("schedule", "list") == [added]

    assert run("schedule", "pause", "clean-up").stdout == "Schedule clean-up is paused.\n"
    (paused,) = run_json("schedule", "list")
    assert (paused["paused"], paused["next_at"]) == (True, None)
    assert run("schedule", "resume", "clean-up").stdout == "Schedule clean-up is resumed.\n"
    assert run_json("schedule", "list") == [added]
    assert run_json("schedule", "remove", "clean-up") == {"outcome": "removed", "name": "clean-up"}
    assert run_json("schedule", "list") == []


def test_d18_message_of_an_interval_comes(run: Run, run_json: RunJson, chores: Broker) -> None:
    start_at = (datetime.now(UTC) + timedelta(minutes=30)).isoformat()
    added = run(
        "schedule",
        "add",
        "push",
        "-",
        "--topic",
        "chores",
        "--every",
        "1h",
        "--start-at",
        start_at,
        stdin=b"\xff",
    )
    assert added.stdout.startswith("Schedule push is added: it sends next at 20")
    assert "1h" in run("schedule", "list").stdout
    with chores.connection() as connection:
        ask(connection, "update duewheel.schedule set next_at = clock_timestamp()")
    chores.advance_schedules()
    (message,) = run_json("message", "receive", "--topic", "chores", "--group", "g", "--wait", "30s")
    assert message["body"] == {"base64": "/w=="}
    assert message["properties"]["schedule"] == "push"


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("add", "s", "x", "--topic", "chores"), 2),
        (("add", "s", "x", "--topic", "chores", "--every", "1h", "--cron", "0 5 * * *"), 2),
        (("add", "s", "x", "--topic", "chores", "--every", "often"), 2),
        (("add", "s", "x", "--topic", "chores", "--every", "1h", "--misfire", "perhaps"), 2),
        (("add", "s", "x", "--topic", "chores", "--cron", "0 25 * * *"), 1),
        (("add", "s", "x", "--topic", "chores", "--cron", "0 5 * * *", "--timezone", "Mars/Olympus"), 1),
        (("add", "s", "x", "--topic", "nowhere", "--every", "1h"), 1),
        (("pause", "s"), 1),
        (("resume", "s"), 1),
        (("remove", "s"), 1),
    ],
)
@pytest.mark.usefixtures("chores")
def test_wrong_schedule_is_refused(run: Run, arguments: tuple[str, ...], status: int) -> None:
    assert run("schedule", *arguments).exit_code == status
