"""A way to run the command line on the test's database."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from duewheel.cli.main import main

Run = Callable[..., Result]
RunJson = Callable[..., Any]


@pytest.fixture
def run(dsn: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run a line of the command line on the test's database, without its first word, and return the result.

    Further arguments are added as they are, without the shell's quoting.
    """
    monkeypatch.setenv("DUEWHEEL_DSN", dsn)
    # No Airflow is set up for the user of the commands.
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("AIRFLOW_HOME", raising=False)
    monkeypatch.delenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", raising=False)

    def invoke(line: str, *more: str, stdin: str | bytes | None = None) -> Result:
        result = CliRunner().invoke(main, [*shlex.split(line), *more], input=stdin)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return invoke


@pytest.fixture
def run_json(run: Run) -> RunJson:
    """Run a line with `--json` and return the document; fails if the command fails."""

    def invoke(line: str, *more: str, stdin: str | bytes | None = None) -> Any:
        result = run(line, *more, "--json", stdin=stdin)
        assert result.exit_code == 0, result.stderr
        return json.loads(result.stdout)

    return invoke


def refusal(result: Result) -> str:
    """The one line with which a command was refused."""
    assert (result.exit_code, result.stdout) == (1, ""), result.output
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr
