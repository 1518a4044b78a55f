"""Tables for people, laid out by rich.

On a terminal a table fits the window: long text (bodies, reasons) is cut with `…`; if that is not enough,
columns that are empty are left out and wide titles take several lines. An id is never cut: if the ids alone
do not fit, each row becomes a block of lines.

Elsewhere nothing is left out or cut: each row is one line with its cells separated by tabs, for `cut` and
`awk`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from duewheel.cli.consoles import console
from duewheel.cli.readable import text_of

Row = Mapping[str, Any]

# Columns whose text may be cut, each with the width below which the rest would be useless.
_LONG = frozenset({"body", "reason", "properties", "filter", "retry_set_by", "instances"})
_LEAST = 12
_GAP = 2
_TITLE = "bold cyan"


def show(rows: Sequence[Row], columns: Sequence[str]) -> None:
    """Write rows to standard output; `columns` are the names to show, in order."""
    output = console()
    if output.is_terminal:
        output.print(table(rows, columns, width=output.width))
    else:
        _write([[_title(column) for column in columns], *(_cells(row, columns) for row in rows)])


def show_one(row: Row) -> None:
    """Write one thing and its fields to standard output, a line for each."""
    output = console()
    if output.is_terminal:
        output.print(_block(row, list(row), cut=False))
    else:
        _write([[_title(column), *_cells(row, [column])] for column in row])


def table(rows: Sequence[Row], columns: Sequence[str], *, width: int) -> RenderableType:
    """Return a table that fits into `width` cells, or a block of lines for each row if no table does.

    Args:
        rows: one row or more.
        columns: the names to show, in order.
        width: the width of the terminal.
    """
    whole = {column: _title(column) for column in columns}
    if _least_width(rows, whole) <= width:
        return _table(rows, whole)
    narrow = {
        column: title if cell_len(title) <= _widest(rows, column) else title.replace(" ", "\n")
        for column, title in whole.items()
        if any(_cells(row, [column]) != ["-"] for row in rows)
    }
    if _least_width(rows, narrow) <= width:
        return _table(rows, narrow)
    return Group(*[line for row in rows for line in ("", _block(row, columns, cut=True))][1:])


def _table(rows: Sequence[Row], titles: Mapping[str, str]) -> Table:
    made = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style=_TITLE)
    for column, title in titles.items():
        is_numeric = _is_numeric([row.get(column) for row in rows])
        # Only columns that may be cut become narrower, so an id stays whole.
        made.add_column(title, justify="right" if is_numeric else "left", no_wrap=column not in _LONG)
    for row in rows:
        made.add_row(*(_cut(text) for text in _cells(row, list(titles))))
    return made


def _block(row: Row, columns: Sequence[str], *, cut: bool) -> Table:
    made = Table.grid(padding=(0, _GAP, 0, 0))
    made.add_column(style=_TITLE, no_wrap=True)
    made.add_column(overflow="fold")
    for column, text in zip(columns, _cells(row, columns), strict=True):
        made.add_row(_title(column), _cut(text) if cut and column in _LONG else Text(text))
    return made


def _cut(text: str) -> Text:
    return Text(text, no_wrap=True, overflow="ellipsis")


def _cells(row: Row, columns: Sequence[str]) -> list[str]:
    return [text_of(row.get(column), is_size=column.endswith("_bytes")) for column in columns]


def _least_width(rows: Sequence[Row], titles: Mapping[str, str]) -> int:
    """Return the width of a table whose long texts are cut as far as makes sense."""
    total = -_GAP
    for column, title in titles.items():
        widest = _widest(rows, column)
        if column in _LONG:
            widest = min(widest, _LEAST)
        total += _GAP + max(widest, *map(cell_len, title.split("\n")))
    return total


def _widest(rows: Sequence[Row], column: str) -> int:
    return max(cell_len(_cells(row, [column])[0]) for row in rows)


def _title(column: str) -> str:
    return re.sub("_bytes$", "_size", column).replace("_", " ")


def _is_numeric(values: Sequence[Any]) -> bool:
    given = [value for value in values if value is not None]
    return bool(given) and all(
        (isinstance(value, (int, float, timedelta)) and not isinstance(value, bool))
        # An estimate.
        or (isinstance(value, str) and value.startswith("~"))
        for value in given
    )


def _write(lines: Sequence[Sequence[str]]) -> None:
    sys.stdout.writelines("\t".join(cells) + "\n" for cells in lines)
    # A failed write shows now, before a later step, such as an ack, relies on it.
    sys.stdout.flush()
