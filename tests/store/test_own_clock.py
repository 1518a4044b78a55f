"""The store reads no clock of the program's machine: instants are the database's."""

from __future__ import annotations

import ast
from pathlib import Path

import duewheel.store

#: What tells an instant; `monotonic` and `perf_counter` tell how long something took.
CLOCKS = {"now", "utcnow", "today", "time", "time_ns", "localtime", "gmtime"}
MODULES = {"datetime", "date", "time", "pendulum", "DateTime"}


def readings(source: str) -> list[int]:
    """The lines of calls such as ``datetime.now()`` and ``time.time()``."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in CLOCKS
        and isinstance(node.func.value, ast.Name | ast.Attribute)
        and ast.unparse(node.func.value).split(".")[-1] in MODULES
    ]


def test_a_reading_is_found() -> None:
    assert readings("import time\ntime.time()\ndatetime.now(UTC)\ntime.monotonic()\nmessage.time()") == [2, 3]


def test_d16_the_store_reads_no_clock_of_the_machine() -> None:
    folder = Path(next(iter(duewheel.store.__path__)))
    found = {
        f"{path.relative_to(folder)}:{line}"
        for path in folder.rglob("*.py")
        for line in readings(path.read_text())
    }
    assert found == set()
