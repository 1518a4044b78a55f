"""The client programs of the Postgres that the tests run on: logical dump and restore."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.servers import programs


def run_program(name: str, *arguments: str) -> None:
    """Run a program of Postgres to its end; fails with what it said."""
    done = subprocess.run([str(programs() / name), *arguments], check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"{name} failed: {done.stderr}"


def dump(dsn: str, file: Path) -> None:
    """Dump a database in the custom format."""
    run_program("pg_dump", "--format=custom", f"--file={file}", dsn)


def restore(file: Path, dsn: str) -> None:
    """Restore a dump into an empty database; any error of any statement is a failure.

    Without privileges, as the roles they are for belong to the cluster and are not in a dump of a database.
    """
    run_program(
        "pg_restore", "--exit-on-error", "--no-owner", "--no-privileges", f"--dbname={dsn}", str(file)
    )
