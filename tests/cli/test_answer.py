"""Answers: rows for people, JSON for programs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum

import pytest

from duewheel.cli.answer import Answer, plain
from duewheel.store.values.numbers import counted


class Colour(Enum):
    RED = "red"


@dataclass
class Thing:
    name: str
    colour: Colour
    made_at: datetime
    lasts: timedelta
    _secret: str = "x"


THING = Thing("a", Colour.RED, datetime(2026, 1, 5, tzinfo=UTC), timedelta(seconds=1.5))


def test_plain_values_are_what_json_knows() -> None:
    assert plain(THING) == {
        "name": "a",
        "colour": "red",
        "made_at": "2026-01-05T00:00:00+00:00",
        "lasts": 1.5,
    }
    assert plain(b"caf\xc3\xa9") == "café"
    assert plain(b"\xff") == {"base64": "/w=="}
    assert plain({"x": (1, None)}) == {"x": [1, None]}


def test_plain_refuses_what_it_does_not_know() -> None:
    with pytest.raises(TypeError, match="no JSON for an object"):
        plain(object())


def test_rows_as_json_are_complete_and_as_a_table_have_the_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A pipe is no terminal, whatever a build asks of colours.
    monkeypatch.setenv("FORCE_COLOR", "1")
    rows: list[dict[str, object]] = [{"name": "a", "size": 1}, {"name": "b", "size": None}]
    Answer(as_json=True).rows(rows, columns=["name"], empty="none")
    assert json.loads(capsys.readouterr().out) == rows
    Answer(as_json=False).rows(rows, columns=["name", "size"], empty="none")
    assert capsys.readouterr().out == "name\tsize\na\t1\nb\t-\n"


def test_no_rows_are_a_sentence_or_an_empty_list(capsys: pytest.CaptureFixture[str]) -> None:
    Answer(as_json=False).rows([], columns=["name"], empty="There is nothing.")
    assert capsys.readouterr().out == "There is nothing.\n"
    Answer(as_json=True).rows([], columns=["name"], empty="There is nothing.")
    assert json.loads(capsys.readouterr().out) == []


def test_text_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    Answer(as_json=False).record({"body": "[bold]:smile: " + "x" * 200})
    assert capsys.readouterr().out == "body\t[bold]:smile: " + "x" * 200 + "\n"


def test_things_are_counted() -> None:
    assert [counted(number, "message") for number in (0, 1, 1000)] == [
        "0 messages",
        "1 message",
        "1 000 messages",
    ]
    assert [counted(number, "retry", "retries") for number in (1, 2)] == ["1 retry", "2 retries"]
