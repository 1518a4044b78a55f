"""Constraints, indexes and functions for programs are those of `schema.txt`: a change is one to be read.

`DUEWHEEL_WRITE_SCHEMA=1` writes the file anew.
"""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import psycopg2

HERE = Path(__file__).parent
WRITTEN = HERE / "schema.txt"
WRITE = "run: DUEWHEEL_WRITE_SCHEMA=1 .venv/bin/python -m pytest tests/store/test_schema_drift.py"


def test_the_migrations_make_the_schema_that_is_written_down(dsn: str) -> None:
    with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        cursor.execute((HERE / "schema.sql").read_text())
        made = "".join(f"{line}\n" for (line,) in cursor.fetchall())
    if os.environ.get("DUEWHEEL_WRITE_SCHEMA"):
        WRITTEN.write_text(made)
    assert made == WRITTEN.read_text(), f"read the difference; if it is right, {WRITE}"
