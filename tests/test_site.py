"""The documentation site: its strict build refuses what a reader would miss."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HOOKS = Path(__file__).parents[1] / "docs" / "site"
#: As little of mkdocs.yml as shows docstrings.
CONFIGURATION = f"""
site_name: sample
strict: true
theme: null
plugins:
  - mkdocstrings:
      handlers:
        python:
          paths: [.]
          options:
            extensions:
              - {HOOKS / "docstrings.py"}:
                  names: [sample.Wheel]
"""


def build(folder: Path, package: str) -> tuple[int, str]:
    """Build a site that shows a class of a package: the exit status, and what was reported."""
    (folder / "docs").mkdir(exist_ok=True)
    (folder / "docs" / "index.md").write_text("# Sample\n\n::: sample.Wheel\n")
    (folder / "mkdocs.yml").write_text(CONFIGURATION)
    (folder / "sample.py").write_text(package)
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(HOOKS)},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    return done.returncode, done.stderr


def test_a_public_name_without_a_docstring_fails_the_build(tmp_path: Path) -> None:
    silent = 'class Wheel:\n    """Turns."""\n\n    def tick(self) -> None: ...\n'
    status, report = build(tmp_path, silent)
    assert status == 1, report
    assert "sample.Wheel.tick is public and has no docstring" in report

    status, report = build(tmp_path, silent.replace("...", '"""Release."""'))
    assert status == 0, report
