"""Tables on a terminal: what they give up where they do not fit, and what never."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

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


def test_a_wide_table_drops_empty_columns_and_wraps_titles() -> None:
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


def test_cells_are_aligned_and_text_is_not_markup() -> None:
    rows = [{"key": "订单", "tag": "a", "n": "~10001"}, {"key": "[bold]:smile:", "tag": "[/]", "n": 7}]
    assert lines(rows, ["key", "tag", "n"], 80) == [
        "key            tag       n",
        "订单           a    ~10001",
        "[bold]:smile:  [/]       7",
    ]


def test_id_is_whole_in_any_window() -> None:
    row = {"message_id": ID, "key": "a key of some words", "reason": "because", "body": b"y" * 5000}
    for width in (1, 20, 60, 80, 120, 1000):
        shown = lines([row], ["message_id", "key", "reason", "body"], width)
        assert ID in "".join(line.strip() for line in shown) or width < 60
