"""How a command answers: tables for people, one JSON document for programs.

In JSON an instant is ISO 8601 with its zone, a duration a number of seconds, a body a string if it is
UTF-8, else `{"base64": ...}`.

On a terminal a table fits the window. If it is too wide, columns that are empty are left out and long text
(bodies, reasons) is cut with `…`; an id never is: if the ids alone do not fit, each row becomes a block of
lines. Elsewhere nothing is left out or cut and a row is one line, for `grep` and `awk`.
"""

from __future__ import annotations

import base64
import json
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, NoReturn

import click
from rich.cells import cell_len, set_cell_size

from duewheel.cli.readable import text_of

#: Exit status of a command that was carried out and found, received or recalled nothing.
NOTHING = 3

# Columns whose text may be cut on a terminal, and the width below which that would say nothing.
_LONG = frozenset({"body", "reason", "properties", "filter", "retry_set_by", "instances"})
_LEAST = 12
_GAP = "  "


@dataclass(frozen=True)
class Answer:
    """Writes what a command found to standard output."""

    as_json: bool

    def rows(self, rows: Iterable[Mapping[str, Any]], *, columns: Sequence[str], empty: str) -> None:
        """Answer with a list; `columns` are those of the table, `empty` is the sentence for no rows."""
        found = [dict(row) for row in rows]
        if self.as_json:
            self._dump(plain(found))
        elif not found:
            click.echo(empty)
        else:
            for line in table(found, columns, width=_terminal_width()):
                click.echo(line)

    def record(self, record: Mapping[str, Any]) -> None:
        """Answer with one thing and its fields."""
        if self.as_json:
            self._dump(plain(dict(record)))
        else:
            for line in _block(record, list(record)):
                click.echo(line)

    def done(self, sentence: str, **facts: Any) -> None:
        """Answer that something was done: the sentence, or in JSON the facts."""
        if self.as_json:
            self._dump(plain(facts))
        else:
            click.echo(sentence)

    def _dump(self, value: Any) -> None:
        click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def end_with_nothing() -> NoReturn:
    """End the command with the exit status that says there was nothing."""
    sys.exit(NOTHING)


def as_mapping(value: Any) -> dict[str, Any]:
    """Return the public fields of a dataclass instance by name."""
    return {
        field.name: getattr(value, field.name) for field in fields(value) if not field.name.startswith("_")
    }


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: `1 message`, `2 000 messages`."""
    return f"{number:,}".replace(",", " ") + f" {noun}" + ("" if number == 1 else "s")


def plain(value: Any) -> Any:
    """Return `value` built of what JSON knows."""
    match value:
        case None | bool() | int() | float() | str() if not isinstance(value, Enum):
            return value
        case Enum():
            return value.value
        case datetime():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case bytes() | memoryview():
            return _body(bytes(value))
        case Mapping():
            return {str(name): plain(item) for name, item in value.items()}
        case _ if is_dataclass(value):
            return plain(as_mapping(value))
        case Iterable():
            return [plain(item) for item in value]
    raise TypeError(f"no JSON for a {type(value).__name__}")


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], *, width: int | None) -> list[str]:
    """Return the lines of a table, or of a block for each row where a table would not fit.

    Args:
        rows: at least one.
        columns: the names to show, in order.
        width: of the terminal in cells; None does not limit it.
    """
    shown = list(columns)
    titles = [[_title(column)] for column in shown]
    cells = [[_cell(row, column) for column in shown] for row in rows]
    widths = _widths(titles, cells)
    if width is not None and _total(widths) > width:
        # What says nothing goes first, then a title wider than its cells takes a line for each word, then
        # long text is cut.
        kept = [index for index, column in enumerate(zip(*cells, strict=True)) if set(column) != {"-"}]
        shown = [shown[index] for index in kept]
        cells = [[line[index] for index in kept] for line in cells]
        titles = [
            title.split() if cell_len(title) > max(map(cell_len, column)) else [title]
            for title, column in zip(map(_title, shown), zip(*cells, strict=True), strict=True)
        ]
        widths = _cut(_widths(titles, cells), shown, width)
        if _total(widths) > width:
            return [line for row in rows for line in ("", *_block(row, columns, width))][1:]
    numeric = [_is_numeric([row.get(column) for row in rows]) for column in shown]
    height = max(map(len, titles))
    headings = [
        [title[place - height + len(title)] if place >= height - len(title) else "" for title in titles]
        for place in range(height)
    ]
    return [
        _GAP.join(
            _aligned(text, size, right) for text, size, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in (*headings, *cells)
    ]


def _widths(titles: Sequence[Sequence[str]], cells: Sequence[Sequence[str]]) -> list[int]:
    return [
        max(map(cell_len, (*title, *column)))
        for title, column in zip(titles, zip(*cells, strict=True), strict=True)
    ]


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _is_numeric(values: Sequence[Any]) -> bool:
    given = [value for value in values if value is not None]
    return bool(given) and all(
        isinstance(value, (int, float, timedelta)) and not isinstance(value, bool) for value in given
    )


def _cut(widths: Sequence[int], columns: Sequence[str], width: int) -> list[int]:
    """Return the widths with those of long text made less, as far as it takes and makes sense."""
    cut = list(widths)
    for index in sorted(range(len(columns)), key=lambda index: -widths[index]):
        if columns[index] in _LONG:
            cut[index] -= min(max(0, _total(cut) - width), max(0, cut[index] - _LEAST))
    return cut


def _aligned(text: str, width: int, right: bool) -> str:
    if cell_len(text) > width:
        return set_cell_size(text, width - 1) + "…"
    padding = " " * (width - cell_len(text))
    return padding + text if right else text + padding


def _block(row: Mapping[str, Any], columns: Sequence[str], width: int | None = None) -> list[str]:
    margin = max(cell_len(_title(column)) for column in columns) + len(_GAP)
    lines = []
    for column in columns:
        text = _cell(row, column)
        if width is not None and column in _LONG and cell_len(text) > max(_LEAST, width - margin):
            text = _aligned(text, max(_LEAST, width - margin), right=False)
        lines.append(_title(column).ljust(margin) + text)
    return lines


def _title(column: str) -> str:
    return re.sub("_bytes$", "_size", column).replace("_", " ")


def _cell(row: Mapping[str, Any], column: str) -> str:
    return text_of(row.get(column), is_size=column.endswith("_bytes"))


def _body(body: bytes) -> Any:
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(body).decode("ascii")}


def _terminal_width() -> int | None:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None
