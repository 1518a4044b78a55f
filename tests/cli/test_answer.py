"""Answers: tables for people, JSON for programs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum

import pytest

from duewheel.cli.answer import Answer, counted, plain, table


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
    with pytest.raises(TypeError, match="no JSON for a object"):
        plain(object())


def test_rows_as_json_are_complete_and_as_a_table_have_the_columns(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows: list[dict[str, object]] = [{"name": "a", "size": 1}, {"name": "b", "size": None}]
    Answer(as_json=True).rows(rows, columns=["name"], empty="none")
    assert json.loads(capsys.readouterr().out) == rows
    Answer(as_json=False).rows(rows, columns=["name", "size"], empty="none")
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["name", "size"],
        ["a", "1"],
        ["b", "-"],
    ]


def test_no_rows_are_a_sentence_or_an_empty_list(capsys: pytest.CaptureFixture[str]) -> None:
    Answer(as_json=False).rows([], columns=["name"], empty="There is nothing.")
    assert capsys.readouterr().out == "There is nothing.\n"
    Answer(as_json=True).rows([], columns=["name"], empty="There is nothing.")
    assert json.loads(capsys.readouterr().out) == []


def test_text_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    Answer(as_json=False).record({"body": "[bold]:smile: " + "x" * 200})
    assert capsys.readouterr().out == "body  [bold]:smile: " + "x" * 200 + "\n"


ID = "0" * 44


def test_table_that_is_too_wide_cuts_long_text_and_no_id() -> None:
    rows = [
        {"message_id": ID, "attempt": 1, "body": b"x" * 300},
        {"message_id": ID, "attempt": 10, "body": b""},
    ]
    lines = table(rows, ["message_id", "attempt", "body"], width=100)
    assert [len(line) for line in lines] == [59, 100, 53]
    assert lines[1] == f"{ID}        1  " + "x" * 44 + "…"
    assert len(table(rows, ["message_id", "attempt", "body"], width=None)[1]) == 55 + 300


def test_row_becomes_a_block_where_no_table_fits() -> None:
    row = {"message_id": ID, "dead_at": datetime(2026, 1, 5, tzinfo=UTC), "reason": "no answer " * 20}
    assert table([row, row], ["message_id", "dead_at", "reason"], width=72) == [
        *(
            block := [
                f"message id  {ID}",
                "dead at     2026-01-05T00:00:00Z",
                "reason      " + ("no answer " * 20)[:59] + "…",
            ]
        ),
        "",
        *block,
    ]


def test_too_wide_table_gives_up_what_says_nothing_and_breaks_its_titles() -> None:
    row = {"name": "t", "retry_set_by": None, "max_delay": timedelta(days=1), "message_type": "FIFO"}
    columns = ["name", "retry_set_by", "max_delay", "message_type"]
    assert table([row], columns, width=45) == [
        "name  retry set by  max delay  message type",
        "t     -                    1d  FIFO",
    ]
    assert table([row], columns, width=40) == [
        "        max  message",
        "name  delay  type",
        "t        1d  FIFO",
    ]


def test_wide_characters_keep_the_columns_straight() -> None:
    lines = table([{"key": "订单", "tag": "a"}, {"key": "x", "tag": "b"}], ["key", "tag"], width=80)
    assert lines == ["key   tag", "订单  a", "x     b"]


def test_things_are_counted() -> None:
    assert [counted(number, "message") for number in (0, 1, 1000)] == [
        "0 messages",
        "1 message",
        "1 000 messages",
    ]
