"""Tables on a terminal: what they give up where they do not fit, and what never."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rich.console import Console

from duewheel.cli.tables import table

ID = "0" * 44


def lines(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], width: int) -> list[str]:
    """The lines of a table in a window of this width, without colours and the blanks at their ends."""
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(table(rows, columns, width=width))
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_long_text_is_cut_and_no_id() -> None:
    rows = [
        {"message_id": ID, "attempt": 1, "body": b"x" * 300},
        {"message_id": ID, "attempt": 10, "body": b""},
    ]
    found = lines(rows, ["message_id", "attempt", "body"], 100)
    assert [len(line) for line in found] == [59, 100, 53]
    assert found[1] == f"{ID}        1  " + "x" * 44 + "…"


def test_row_becomes_a_block_where_no_table_fits() -> None:
    row = {"message_id": ID, "dead_at": datetime(2026, 1, 5, tzinfo=UTC), "reason": "no answer " * 20}
    block = [
        f"message id  {ID}",
        "dead at     2026-01-05T00:00:00Z",
        "reason      " + ("no answer " * 20)[:59] + "…",
    ]
    assert lines([row, row], ["message_id", "dead_at", "reason"], 72) == [*block, "", *block]


def test_too_wide_table_gives_up_what_says_nothing_and_breaks_its_titles() -> None:
    row = {"name": "t", "retry_set_by": None, "max_delay": timedelta(days=1), "message_type": "FIFO"}
    columns = ["name", "retry_set_by", "max_delay", "message_type"]
    assert lines([row], columns, 45) == [
        "name  retry set by  max delay  message type",
        "t     -                    1d  FIFO",
    ]
    assert lines([row], columns, 40) == [
        "        max  message",
        "name  delay  type",
        "t        1d  FIFO",
    ]


def test_wide_characters_keep_the_columns_straight() -> None:
    assert lines([{"key": "订单", "tag": "a"}, {"key": "x", "tag": "b"}], ["key", "tag"], 80) == [
        "key   tag",
        "订单  a",
        "x     b",
    ]


def test_numbers_and_estimates_are_on_the_right() -> None:
    assert lines([{"waiting": "~10001"}, {"waiting": 7}], ["waiting"], 80)[1:] == [" ~10001", "      7"]


def test_text_is_no_markup_and_ends_where_it_ends() -> None:
    assert lines([{"key": "[bold]:smile:", "tag": "[/]"}], ["key", "tag"], 80)[1] == "[bold]:smile:  [/]"


@pytest.mark.parametrize("width", [1, 20, 60, 80, 120, 1000])
def test_id_is_whole_in_any_window(width: int) -> None:
    row = {"message_id": ID, "key": "a key of some words", "reason": "because", "body": b"y" * 5000}
    columns = ["message_id", "key", "reason", "body"]
    assert ID in "".join(line.strip() for line in lines([row], columns, width)) or width < 60
