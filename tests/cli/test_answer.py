"""Answers: rows for people, JSON for programs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum

import pytest

from duewheel.cli.answer import Answer, plain


class Colour(Enum):
    RED = "red"


@dataclass
class Thing:
    name: str
    colour: Colour
    made_at: datetime
    lasts: timedelta
    _secret: str = "x"


def test_plain_values_are_what_json_knows() -> None:
    assert plain(Thing("a", Colour.RED, datetime(2026, 1, 5, tzinfo=UTC), timedelta(seconds=1.5))) == {
        "name": "a",
        "colour": "red",
        "made_at": "2026-01-05T00:00:00+00:00",
        "lasts": 1.5,
    }
    assert plain(b"caf\xc3\xa9") == "café"
    assert plain(b"\xff") == {"base64": "/w=="}
    assert plain({"x": (1, None)}) == {"x": [1, None]}
    with pytest.raises(TypeError, match="no JSON for an object"):
        plain(object())


def test_json_has_all_and_a_table_its_columns_as_they_are(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A pipe is not a terminal, whatever a build asks of colours.
    monkeypatch.setenv("FORCE_COLOR", "1")
    rows: list[dict[str, object]] = [{"name": "a", "size": 1}, {"name": "b", "size": None}]
    program, person = Answer(as_json=True), Answer(as_json=False)
    for given in (rows, []):
        program.rows(given, columns=["name"], empty="There is nothing.")
        assert json.loads(capsys.readouterr().out) == given
    person.rows(rows, columns=["name", "size"], empty="There is nothing.")
    assert capsys.readouterr().out == "name\tsize\na\t1\nb\t-\n"
    person.rows([], columns=["name"], empty="There is nothing.")
    assert capsys.readouterr().out == "There is nothing.\n"
    person.record({"body": "[bold]:smile: " + "x" * 200})
    assert capsys.readouterr().out == "body\t[bold]:smile: " + "x" * 200 + "\n"
