"""How the SQL files are written."""

from __future__ import annotations

from pathlib import Path

from duewheel import store

COLUMNS = 120
# Released, and never edited since.
FROZEN = "v0001"


def test_sql_is_at_most_120_columns_wide() -> None:
    files = [
        path
        for path in Path(store.__path__[0]).rglob("*.sql")
        if FROZEN not in path.relative_to(Path(store.__path__[0])).parts
    ]
    assert len(files) > 30
    wide = [
        f"{path.name}:{number}"
        for path in files
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > COLUMNS
    ]
    assert wide == []
