"""Dead letters on the command line: looked at, and given to their group again."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from click.testing import Result

from duewheel.store import Broker, RetryPolicy
from duewheel.store.operations import dead_letters

Run = Callable[..., Result]
RunJson = Callable[..., Any]


@pytest.fixture
def dead(broker: Broker) -> dict[str, str]:
    """The message ids, by key, of the dead letters that group `g` has: `a-1`, `a-2` (tag `x`), `b-1`."""
    broker.create_topic("t")
    consumer = broker.consumer("t", "g", retry=RetryPolicy.unordered(0))
    ids = {}
    for key, tag, reason in (
        ("a-1", None, "timeout"),
        ("a-2", "x", "timeout"),
        ("b-1", "x", "no such order"),
    ):
        ids[key] = broker.send("t", key, key=key, tag=tag, delay=timedelta(0)).message_id
        consumer.nack(consumer.receive(wait=timedelta(seconds=5)), reason=reason)
    return ids


def test_r14_dead_letters_are_listed_with_their_reasons(
    run: Run, run_json: RunJson, dead: dict[str, str]
) -> None:
    letters = run_json("dead-letter", "list", "--group", "g")
    assert [(letter["key"], letter["reason"], letter["redriven_at"]) for letter in letters] == [
        ("a-1", "timeout", None),
        ("a-2", "timeout", None),
        ("b-1", "no such order", None),
    ]
    assert [letter["message_id"] for letter in letters] == list(dead.values())
    assert len(run_json("dead-letter", "list", "--group", "g", "--limit", "2")) == 2
    lines = run("dead-letter", "list", "--group", "g").stdout.splitlines()
    assert [line.split("\t")[-1] for line in lines] == ["body", "a-1", "a-2", "b-1"]


def test_x12_dead_letters_are_redriven_once(
    run: Run, run_json: RunJson, dead: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Several portions, which are added up.
    monkeypatch.setattr(dead_letters, "CHUNK", 1)
    chosen = ("dead-letter", "redrive", "--group", "g", "--reason", "timeout")
    assert run(*chosen, "--dry-run").stdout == "2 dead letters would be redriven.\n"
    assert run(*chosen, "--limit", "1", "--rate", "1000").stdout == "1 dead letter redriven.\n"
    assert run_json(*chosen) == {"matched": 1, "redriven": 1}
    assert run(*chosen).exit_code == 3
    assert [letter["key"] for letter in run_json("dead-letter", "list", "--group", "g", "--open")] == ["b-1"]
    assert [letter["key"] for letter in run_json("dead-letter", "list", "--group", "g", "--redriven")] == [
        "a-1",
        "a-2",
    ]
    received = run_json("message", "receive", "--topic", "t", "--group", "g", "--wait", "5s", "--ack")
    assert {message["message_id"]: message["attempt"] for message in received} == {
        dead["a-1"]: 2,
        dead["a-2"]: 2,
    }


@pytest.mark.parametrize(
    ("options", "keys"),
    [
        ((), ["a-1", "a-2", "b-1"]),
        (("--topic", "t", "--tag", "x"), ["a-2", "b-1"]),
        (("--key-prefix", "a-"), ["a-1", "a-2"]),
        (("--dead-until", "2020-01-31T17:30:00Z"), []),
        (("--dead-from", "2020-01-31T17:30:00Z", "--tag", "x", "--reason", "no"), ["b-1"]),
    ],
)
@pytest.mark.usefixtures("dead")
def test_x12_redrive_chooses(run: Run, run_json: RunJson, options: tuple[str, ...], keys: list[str]) -> None:
    assert run("dead-letter", "redrive", "--group", "g", *options).exit_code == (0 if keys else 3)
    assert [letter["key"] for letter in run_json("dead-letter", "list", "--group", "g", "--redriven")] == keys


def test_x12_dead_letters_are_discarded_after_a_question(
    run: Run, run_json: RunJson, dead: dict[str, str]
) -> None:
    chosen = ("dead-letter", "discard", "--group", "g", "--reason", "timeout")
    assert run(*chosen, "--dry-run").stdout == "2 dead letters would be discarded.\n"
    asked = run(*chosen, stdin="n\n")
    assert asked.exit_code == 1
    assert "Discard 2 dead letters of consumer group g?" in asked.stderr
    assert len(run_json("dead-letter", "list", "--group", "g")) == 3
    assert run_json(*chosen, "--yes") == {"discarded": 2}
    assert run(*chosen, "--yes").exit_code == 3
    assert [letter["key"] for letter in run_json("dead-letter", "list", "--group", "g")] == ["b-1"]
    assert run("dead-letter", "discard", "--group", "g", dead["b-1"], "--yes").stdout == (
        "1 dead letter discarded.\n"
    )


def test_x12_some_are_redriven_by_their_ids(run: Run, run_json: RunJson, dead: dict[str, str]) -> None:
    assert (
        run("dead-letter", "redrive", "--group", "g", dead["b-1"], dead["a-1"]).stdout
        == "2 dead letters redriven.\n"
    )
    (left,) = run_json("dead-letter", "list", "--group", "g", "--open")
    assert left["key"] == "a-2"
    assert datetime.fromisoformat(left["dead_at"]) <= datetime.now(UTC)
