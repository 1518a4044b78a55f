"""A way to run the command line on the test's database."""

from __future__ import annotations

import json
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
    """Run the command line with these arguments, on the test's database, and return what it did."""
    monkeypatch.setenv("DUEWHEEL_DSN", dsn)
    # No Airflow is set up for the user of the commands.
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("AIRFLOW_HOME", raising=False)
    monkeypatch.delenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", raising=False)

    def invoke(*arguments: str, stdin: str | bytes | None = None) -> Result:
        result = CliRunner().invoke(main, arguments, input=stdin)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return invoke


@pytest.fixture
def run_json(run: Run) -> RunJson:
    """Run the command line with `--json` and return the document; fails if the command fails."""

    def invoke(*arguments: str, stdin: str | bytes | None = None) -> Any:
        result = run(*arguments, "--json", stdin=stdin)
        assert result.exit_code == 0, result.stderr
        return json.loads(result.stdout)

    return invoke
