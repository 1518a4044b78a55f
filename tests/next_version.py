"""A program of the next version: this one with a revision and a function more, which only the tests know.

Its revision adds a column to every message, which changes the tables that each send and receive uses. It runs
in a process of its own, so that the test's process is a program of this version before and after the upgrade.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from alembic.script import ScriptDirectory
from tests.waiting import PATIENCE_SECONDS, until

from duewheel.store import sql
from duewheel.store.database import schema

CHANGES = Path(__file__).parent / "store" / "next_version"
#: The number of its revision.
REVISION = f"{int(schema.newest_revision()) + 1:04}"

_UPGRADE = """
import logging, sys
from pathlib import Path
from duewheel.store import sql
from duewheel.store.database import migration, schema
logging.basicConfig(level=logging.WARNING)
folder = Path(sys.argv[1])
migration.MIGRATIONS = schema.MIGRATIONS = folder / "migrations"
sql.FOLDER = folder / "sql"
print(migration.upgrade(sys.argv[2]).revision)
"""


def with_more(folder: Path, texts: Mapping[str, str]) -> Path:
    """Copies the functions of this program to a folder, with more files of them behind."""
    shutil.copytree(sql.FOLDER, folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in texts.items():
        (folder / f"{name}.sql").write_text(text)
    with (folder / "manifest.txt").open("a") as manifest:
        manifest.writelines(f"{name}\n" for name in texts)
    return folder


class Upgrade:
    """A run of ``duewheel db upgrade`` of the next version."""

    def __init__(self, program: Path, dsn: str, log: Path) -> None:
        self._log = log
        with log.open("w") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _UPGRADE, str(program), dsn], stdout=file, stderr=file
            )

    @property
    def log(self) -> str:
        return self._log.read_text()

    def is_over(self) -> bool:
        return self._process.poll() is not None

    def is_held_up(self) -> bool:
        """Whether it has said that it waits for an open transaction."""
        return "the upgrade waits for open transactions" in self.log

    def finish(self) -> None:
        """Wait for its end; fails where it failed."""
        assert self._process.wait(PATIENCE_SECONDS) == 0, self.log
        assert self.log.splitlines()[-1] == REVISION


class NextVersion:
    """The files of the next version, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        migrations = folder / "migrations"
        shutil.copytree(schema.MIGRATIONS, migrations, ignore=shutil.ignore_patterns("__pycache__"))
        ScriptDirectory(str(migrations)).generate_revision(REVISION, "Priorities", head="head")
        shutil.copytree(CHANGES / "migration", migrations / "versions" / f"v{REVISION}")
        with_more(folder / "sql", {"priority": (CHANGES / "priority.sql").read_text()})
        self._upgrades = 0

    def start_upgrade(self, dsn: str) -> Upgrade:
        """Begin to upgrade a database."""
        self._upgrades += 1
        return Upgrade(self._folder, dsn, self._folder / f"upgrade_{self._upgrades}.log")

    def upgrade(self, dsn: str) -> None:
        """Upgrade a database."""
        upgrade = self.start_upgrade(dsn)
        until(upgrade.is_over, "the upgrade")
        upgrade.finish()
