"""How a command answers: tables for people, one JSON document for programs.

In JSON an instant is ISO 8601 with its zone, a duration a number of seconds, a body a string if it is
UTF-8, else `{"base64": ...}`.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, NoReturn

import click

from duewheel.cli.tables import show, show_one
from duewheel.store.values.kinds import a_kind

#: Exit status of a command that was carried out and found, received or recalled nothing.
NOTHING = 3


@dataclass(frozen=True)
class Answer:
    """Writes a command's result to standard output."""

    as_json: bool

    def rows(self, rows: Iterable[Mapping[str, Any]], *, columns: Sequence[str], empty: str) -> None:
        """Answer with a list; `columns` are the table's columns, `empty` is the sentence for no rows."""
        found = [dict(row) for row in rows]
        if self.as_json:
            self._dump(plain(found))
        elif not found:
            click.echo(empty)
        else:
            show(found, columns)

    def record(self, record: Mapping[str, Any]) -> None:
        """Answer with one thing and its fields."""
        if self.as_json:
            self._dump(plain(dict(record)))
        else:
            show_one(record)

    def done(self, sentence: str, **facts: Any) -> None:
        """Answer that an action was carried out: the sentence, or in JSON the facts."""
        if self.as_json:
            self._dump(plain(facts))
        else:
            click.echo(sentence)

    def _dump(self, value: Any) -> None:
        click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def end_with_nothing() -> NoReturn:
    """End the command with the exit status for an empty result."""
    sys.exit(NOTHING)


def as_mapping(value: Any) -> dict[str, Any]:
    """Return the public fields of a dataclass instance by name."""
    return {
        field.name: getattr(value, field.name) for field in fields(value) if not field.name.startswith("_")
    }


def plain(value: Any) -> Any:
    """Return `value` built of types that JSON knows."""
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
    raise TypeError(f"no JSON for {a_kind(value)}")


def _body(body: bytes) -> Any:
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(body).decode("ascii")}
