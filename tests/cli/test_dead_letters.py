"""Dead letters on the command line: looked at, redriven and discarded."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.acting import send
from tests.cli.conftest import Run, RunJson

from duewheel.store import Broker, RetryPolicy
from duewheel.store.operations import dead_letters


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
        send(broker, key, key=key, tag=tag)
        (message,) = consumer.receive(wait=timedelta(seconds=5))
        ids[key] = message.message_id
        consumer.nack(message, reason=reason)
    return ids


def test_r14_dead_letters_are_listed_with_their_reasons(
    run: Run, run_json: RunJson, dead: dict[str, str], broker: Broker
) -> None:
    listing = "dead-letter list --group"
    letters = run_json(f"{listing} g")
    assert [(letter["key"], letter["reason"], letter["redriven_at"]) for letter in letters] == [
        ("a-1", "timeout", None),
        ("a-2", "timeout", None),
        ("b-1", "no such order", None),
    ]
    assert [letter["message_id"] for letter in letters] == list(dead.values())
    assert run_json(f"{listing} g --open") == run_json(f"{listing} g --topic t") == letters
    assert run_json(f"{listing} g --max-messages 2") == letters[:2]
    assert run_json(f"{listing} g --redriven") == []
    lines = run(f"{listing} g").stdout.splitlines()
    assert [line.split("\t")[-1] for line in lines] == ["body", "a-1", "a-2", "b-1"]
    broker.consumer("t", "new")
    assert run(f"{listing} new").stdout == "new has no dead letters.\n"


def test_x12_dead_letters_are_redriven_once(
    run: Run, run_json: RunJson, dead: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Several portions, which are added up.
    monkeypatch.setattr(dead_letters, "CHUNK", 1)
    redrive = "dead-letter redrive --group g"
    chosen = f"{redrive} --reason-contains timeout"
    assert run(f"{chosen} --dry-run").stdout == "2 dead letters would be redriven.\n"
    assert run(f"{chosen} --max-messages 1 --per-second 1000").stdout == "1 dead letter redriven.\n"
    assert run_json(chosen) == {"matched": 1, "redriven": 1}
    assert run(chosen).exit_code == 3
    assert [letter["key"] for letter in run_json("dead-letter list --group g --open")] == ["b-1"]
    redriven = run_json("dead-letter list --group g --redriven")
    assert [letter["key"] for letter in redriven] == ["a-1", "a-2"]
    received = run_json("message receive --topic t --group g --wait 5s --ack")
    assert {message["message_id"]: message["attempt"] for message in received} == {
        dead["a-1"]: 2,
        dead["a-2"]: 2,
    }
    assert run(redrive, dead["b-1"]).stdout == "1 dead letter redriven.\n"


@pytest.mark.usefixtures("dead")
def test_x12_options_choose_dead_letters(run: Run) -> None:
    for options, number in (
        ("", 3),
        ("--topic t --tag x", 2),
        ("--key-prefix a-", 2),
        ("--key-prefix a- --tag x", 1),
        ("--reason-contains no", 1),
        ("--reason timeout", 2),
        ("--reason time", 0),
        ("--reason-lacks no", 2),
        ("--dead-until 2020-01-31T17:30:00Z", 0),
        ("--dead-from 2020-01-31T17:30:00Z --max-messages 2", 2),
    ):
        for verb in ("redrive", "discard"):
            found = run(f"dead-letter {verb} --group g --dry-run {options}")
            assert found.stdout.startswith(f"{number} dead letter"), options
            assert found.exit_code == (0 if number else 3)


def test_x12_dead_letters_are_discarded_after_a_question(
    run: Run, run_json: RunJson, dead: dict[str, str]
) -> None:
    chosen = "dead-letter discard --group g --reason-contains timeout"
    asked = run(chosen, stdin="n\n")
    assert asked.exit_code == 1
    assert "Discard 2 dead letters of consumer group g?" in asked.stderr
    assert len(run_json("dead-letter list --group g")) == 3
    assert run_json(f"{chosen} --yes") == {"discarded": 2}
    assert run(f"{chosen} --yes").exit_code == 3
    by_id = run("dead-letter discard --group g --yes", dead["b-1"])
    assert by_id.stdout == "1 dead letter discarded.\n"
    assert run_json("dead-letter list --group g") == []
