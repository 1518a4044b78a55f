"""Recalling in bulk and rescheduling on the command line."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from click.testing import Result

from duewheel.store import Broker
from duewheel.store.operations import recalling

Run = Callable[..., Result]
RunJson = Callable[..., Any]


@pytest.fixture
def waiting(broker: Broker) -> Broker:
    """A broker where `a-1`, `a-2` (tag `x`) and `b-1` wait for an hour on `t`, and `a-0` is released."""
    broker.create_topic("t")
    broker.send("t", "", key="a-0", delay=timedelta(0))
    broker.tick("t")
    for key, tag in (("a-1", "x"), ("a-2", "x"), ("b-1", None)):
        broker.send("t", "", key=key, tag=tag, delay=timedelta(hours=1))
    return broker


@pytest.mark.usefixtures("waiting")
def test_x05_what_matches_is_counted_and_then_recalled(
    run: Run, run_json: RunJson, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Several portions, which are added up.
    monkeypatch.setattr(recalling, "CHUNK", 1)
    prefix = ("message", "recall-many", "--topic", "t", "--key-prefix", "a-")
    assert run_json(*prefix, "--dry-run") == {"matched": 3, "recalled": 0, "already_released": 1}
    sentence = "2 messages would be recalled; 1 message had been released before.\n"
    assert run(*prefix, "--dry-run").stdout == sentence
    assert run(*prefix).stdout == "2 messages recalled; 1 message had been released before.\n"
    again = run(*prefix)
    assert (again.exit_code, again.stdout) == (
        3,
        "0 messages recalled; 1 message had been released before.\n",
    )
    assert run_json("stats")["topics"][0]["waiting"] == 3
    assert run_json("message", "recall-many", "--topic", "t", "--everything")["recalled"] == 1


@pytest.mark.usefixtures("waiting")
def test_x05_tag_and_window_choose_together(run_json: RunJson) -> None:
    soon = (datetime.now(UTC) + timedelta(minutes=30)).isoformat()
    late = (datetime.now(UTC) + timedelta(minutes=90)).isoformat()
    window = ("--due-from", soon, "--due-until", late)
    assert run_json("message", "recall-many", "--topic", "t", *window, "--dry-run")["matched"] == 3
    assert run_json("message", "recall-many", "--topic", "t", *window, "--tag", "x")["recalled"] == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ("recall", "--topic", "t"),
        ("recall", "00", "--tag", "x"),
        ("recall", "00", "--dry-run"),
        ("recall-many", "--dry-run"),
        ("recall-many", "--topic", "t"),
        ("recall-many", "--tag", "x"),
        ("recall-many", "00", "--topic", "t", "--tag", "x"),
        ("recall-many", "--topic", "t", "--key", "k"),
        ("recall-many", "--topic", "t", "--tag", "x", "--everything"),
        ("recall-many", "--topic", "t", "--due-from", "soon"),
    ],
)
def test_recall_that_says_too_little_or_too_much_is_refused(run: Run, arguments: tuple[str, ...]) -> None:
    assert run("message", *arguments).exit_code == 2


@pytest.mark.usefixtures("waiting")
def test_x03_message_is_moved(run: Run, run_json: RunJson) -> None:
    (moved,) = run_json("message", "reschedule", "--topic", "t", "--key", "a-1", "--delay", "2h")
    assert datetime.fromisoformat(moved["deliver_at"]) - datetime.now(UTC) > timedelta(minutes=90)
    (again,) = run_json("message", "reschedule", moved["message_id"], "--at", "2020-01-31T17:30:00Z")
    assert again["message_id"] != moved["message_id"]
    late = run("message", "reschedule", "--topic", "t", "--key", "a-0", "--delay", "2h")
    assert (late.exit_code, "released" in late.stderr) == (1, True)
    assert run("message", "reschedule", "--topic", "t", "--key", "b-1").exit_code == 2
    assert run("message", "reschedule", "--topic", "t", "--delay", "2h").exit_code == 2
