"""The first steps in docs/how-to/first-steps.md up to Airflow; tests/operators/test_live.py goes on there."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.console import Shell, commands, is_said, section
from tests.pages import examples
from tests.waiting import PATIENCE_SECONDS

from duewheel.store import EmbeddedPostgres

PAGE = (Path(__file__).parent.parent / "docs" / "how-to" / "first-steps.md").read_text(encoding="utf-8")
#: The sections whose commands are run: here, and those of the last three in a live Airflow.
RUN = (
    *("With a Postgres", "Without a Postgres", "Prepare the database", "Add the connection"),
    *("Place an order and do not pay", "Place an order and pay it"),
)
ADDRESS = "postgresql://shop:secret@db:5432/shop"


def test_every_command_of_the_page_is_run() -> None:
    assert [command for title in RUN for command in commands(section(PAGE, title))] == commands(PAGE)


@pytest.mark.parametrize("printed", ["recalled", "already recalled", "not recalled at NOW"])
def test_an_output_has_to_be_as_the_page_says(printed: str) -> None:
    assert is_said("recalled\n", printed) == (printed == "recalled")
    assert is_said("...\nrecalled\n...", printed)
    assert not is_said("...\nalready_released", printed)


@pytest.mark.slow
def test_with_a_postgres(postgres: EmbeddedPostgres) -> None:
    shell = Shell(dict(os.environ))
    shell.run_all(section(PAGE, "With a Postgres"), {ADDRESS: postgres.ensure_database("first_steps")})
    shell.run_all(section(PAGE, "Prepare the database"))


@pytest.mark.slow
@pytest.mark.long
def test_without_a_postgres(tmp_path: Path) -> None:
    text = section(PAGE, "Without a Postgres")
    (program,) = examples(text, "py")
    (tmp_path / "postgres_here.py").write_text(program)
    (command,) = commands(text)
    with subprocess.Popen(
        [sys.executable, *shlex.split(command.line)[1:]],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        # A build that runs in the background has it ignored, and so have its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as server:
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            assert is_said(command.output, line), line
            name, _, value = shlex.split(line)[1].partition("=")
            Shell({**os.environ, name: value}).run_all(section(PAGE, "Prepare the database"))
            # Ctrl+C.
            server.send_signal(signal.SIGINT)
            server.wait(timeout=PATIENCE_SECONDS)
        finally:
            server.kill()
    assert server.returncode == 0
