"""Runs the store's quick tests in each way on several servers: ``python -m tests.versions PROGRAMS...``.

Each argument is the folder of a Postgres' programs. The table of versions by test sets is printed at the end,
and written to ``build/versions.md``.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

#: Targets of ``python -m tests``, and their columns.
SETS = {
    "store": "superuser",
    "owner": "owner, no superuser",
    "roles": "the four roles",
    "pooled": "through PgBouncer",
}
TABLE = Path("build/versions.md")


def result_of(name: str, programs: str) -> tuple[str, bool]:
    """The last line of a set's run on a server, and whether it passed."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests", name],
        env={**os.environ, "DUEWHEEL_TEST_POSTGRES": programs},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    last = ""
    for line in process.stdout:
        sys.stdout.write(line)
        last = line
    return re.sub(r" in .*$", "", last.strip("= \n")), process.wait() == 0


def table_of(results: dict[str, list[str]]) -> str:
    """The results of each server as a table of Markdown.

    Example:
        >>> print(table_of({"15.1": ["2 passed", "1 failed"]}).splitlines()[2])
        | 15.1 | 2 passed | 1 failed |
    """
    head = ["Postgres", *SETS.values()]
    lines = [head, ["---"] * len(head), *([version, *cells] for version, cells in results.items())]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def main(folders: list[str]) -> int:
    """Run all sets on all servers, and return the exit status."""
    results: dict[str, list[str]] = {}
    all_passed = True
    for programs in folders:
        told = subprocess.check_output([f"{programs}/postgres", "--version"], text=True)
        cells = results[told.removeprefix("postgres (PostgreSQL) ").strip()] = []
        for name in SETS:
            result, passed = result_of(name, programs)
            cells.append(result)
            all_passed &= passed
        # What is known so far, should a later run be broken off.
        TABLE.parent.mkdir(exist_ok=True)
        TABLE.write_text(table_of(results))
    sys.stdout.write(table_of(results))
    return int(not all_passed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
