"""Recalling in bulk and rescheduling on the command line."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from tests.acting import HOUR, send
from tests.cli.conftest import Run, RunJson, refusal

from duewheel.store import Broker
from duewheel.store.operations import recalling


@pytest.fixture
def waiting(broker: Broker) -> Broker:
    """A broker where `a-1`, `a-2` (tag `x`) and `b-1` wait for an hour on `t`, and `a-0` is released."""
    broker.create_topic("t")
    send(broker, "", key="a-0")
    broker.tick("t")
    for key, tag in (("a-1", "x"), ("a-2", "x"), ("b-1", None)):
        send(broker, "", key=key, tag=tag, delay=HOUR)
    return broker


@pytest.mark.usefixtures("waiting")
def test_x05_what_matches_is_counted_and_then_recalled(
    run: Run, run_json: RunJson, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Several portions, which are added up.
    monkeypatch.setattr(recalling, "CHUNK", 1)
    recall = "message recall-many --topic t"
    soon, late = ((datetime.now(UTC) + timedelta(minutes=minutes)).isoformat() for minutes in (30, 90))
    window = ("--due-from", soon, "--due-until", late)
    assert run_json(f"{recall} --dry-run", *window)["matched"] == 3
    assert run_json(f"{recall} --dry-run --tag x", *window)["matched"] == 2
    assert run(f"{recall} --dry-run --due-until", soon).exit_code == 3
    prefix = f"{recall} --key-prefix a-"
    assert run_json(f"{prefix} --dry-run") == {"matched": 3, "recalled": 0, "already_released": 1}
    sentence = "2 messages would be recalled; 1 message had been released before.\n"
    assert run(f"{prefix} --dry-run").stdout == sentence
    assert run(prefix).stdout == "2 messages recalled; 1 message had been released before.\n"
    again = run(prefix)
    assert again.exit_code == 3
    assert again.stdout == "0 messages recalled; 1 message had been released before.\n"
    assert [listed["key"] for listed in run_json("message list --topic t")] == ["b-1"]
    assert run_json(f"{recall} --everything")["recalled"] == 1


@pytest.mark.usefixtures("waiting")
def test_x03_message_is_moved(run: Run, run_json: RunJson) -> None:
    (moved,) = run_json("message reschedule --topic t --key a-1 --delay 2h")
    assert datetime.fromisoformat(moved["deliver_at"]) - datetime.now(UTC) > timedelta(minutes=90)
    (again,) = run_json(f"message reschedule {moved['message_id']} --deliver-at 2020-01-31T17:30:00Z")
    assert again["message_id"] != moved["message_id"]
    assert "released" in refusal(run("message reschedule --topic t --key a-0 --delay 2h"))
