"""The first steps in docs/how-to/spark-first-steps.md: each program and each command."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from tests.console import Shell, commands, section
from tests.pages import examples

from duewheel.store import EmbeddedPostgres

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "spark-first-steps.md").read_text(encoding="utf-8")
SECTIONS = ("Prepare a broker", "Write", "Work on a batch", "Follow a stream", "Take one back")
ADDRESS = "postgresql://shop:secret@db:5432/shop"


def test_every_command_of_the_page_is_run() -> None:
    assert [command for title in SECTIONS for command in commands(section(PAGE, title))] == commands(PAGE)


@pytest.mark.long
@pytest.mark.slow
def test_the_page_runs_as_it_stands(
    postgres: EmbeddedPostgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = examples(PAGE, "py")
    names = re.findall(r"Save this as\s`(\w+\.py)`", PAGE)
    for name, program in zip(names, programs, strict=True):
        (tmp_path / name).write_text(program)
    monkeypatch.chdir(tmp_path)
    shell = Shell(dict(os.environ))
    for title in SECTIONS:
        shell.run_all(section(PAGE, title), {ADDRESS: postgres.ensure_database("spark_first_steps")})
