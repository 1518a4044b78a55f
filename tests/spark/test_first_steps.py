"""The first steps in docs/how-to/spark-first-steps.md: each program and each command."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import closing
from itertools import takewhile
from pathlib import Path

import pytest
from tests.console import Shell, commands, section
from tests.pages import examples

from duewheel.store import EmbeddedPostgres

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "spark-first-steps.md").read_text(encoding="utf-8")
SECTIONS = ("Prepare a broker", "Write", "Work on a batch", "Follow a stream", "Recall a message")
ADDRESS = "postgresql://shop:secret@db:5432/shop"


def test_every_command_of_the_page_is_run() -> None:
    assert [command for title in SECTIONS for command in commands(section(PAGE, title))] == commands(PAGE)


#: Runs the programs whose names it reads, each as a main program. Spark's sessions share the first one's JVM.
PROGRAMS = """
import runpy, sys
for name in map(str.strip, sys.stdin):
    runpy.run_path(name, run_name="__main__")
    print(END, flush=True)
"""
END = "the end of the program"


class OneJvm(Shell):
    """A shell whose Python programs run one after the other in one process."""

    python: subprocess.Popen[str] | None = None

    def run(self, line: str) -> str:
        if not line.startswith("python "):
            return super().run(line)
        if self.python is None:
            self.python = subprocess.Popen(
                [sys.executable, "-c", PROGRAMS.replace("END", repr(END))],
                env=self.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self.python.stdin is not None
        assert self.python.stdout is not None
        self.python.stdin.write(f"{line.removeprefix('python ')}\n")
        self.python.stdin.flush()
        return "".join(takewhile(f"{END}\n".__ne__, self.python.stdout))

    def close(self) -> None:
        """Let the process end, which it does well."""
        if self.python is not None:
            self.python.communicate()
            assert self.python.returncode == 0


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
    with closing(OneJvm(dict(os.environ))) as shell:
        for title in SECTIONS:
            shell.run_all(section(PAGE, title), {ADDRESS: postgres.ensure_database("spark_first_steps")})
