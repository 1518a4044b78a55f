"""The first steps in docs/how-to/first-steps.md up to Airflow; tests/operators/test_live.py goes on there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tests.console import Shell, commands, is_said, section

from duewheel.store import EmbeddedPostgres

pytestmark = pytest.mark.slow

PAGE = (Path(__file__).parent.parent / "docs" / "how-to" / "first-steps.md").read_text(encoding="utf-8")
ADDRESS = "postgresql://shop:secret@db:5432/shop"


def prepare_and_send(shell: Shell) -> None:
    """Do what the page says once the reader has an address."""
    shell.run_all(section(PAGE, "Prepare the database"))
    shell.run_all(section(PAGE, "Send and recall by hand"))


def test_with_a_postgres(postgres: EmbeddedPostgres) -> None:
    shell = Shell(dict(os.environ))
    shell.run_all(section(PAGE, "With a Postgres"), {ADDRESS: postgres.ensure_database("first_steps")})
    prepare_and_send(shell)


def test_without_a_postgres(tmp_path: Path) -> None:
    text = section(PAGE, "Without a Postgres")
    (program,) = re.findall(r"^```py\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "postgres_here.py").write_text(program)
    (command,) = commands(text)
    with subprocess.Popen(
        [sys.executable, *shlex.split(command.line)[1:]],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            assert is_said(command.output, line), line
            name, _, value = shlex.split(line)[1].partition("=")
            prepare_and_send(Shell({**os.environ, name: value}))
            # Enter.
            server.communicate("\n")
        finally:
            server.kill()
    assert server.returncode == 0
