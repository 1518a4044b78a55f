"""The stage of the rule tests: a topic under a clock that moves when told, and the command line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from duewheel.cli.main import main

if TYPE_CHECKING:
    from tests.acting import Command


@pytest.fixture
def command(dsn: str, monkeypatch: pytest.MonkeyPatch) -> Command:
    """The command line on the test's database; fails if a command fails."""
    monkeypatch.setenv("DUEWHEEL_DSN", dsn)

    def run(*arguments: str, stdin: str | None = None) -> Any:
        result = CliRunner().invoke(main, [*arguments, "--json"], input=stdin, catch_exceptions=False)
        assert result.exit_code == 0, result.stderr
        return json.loads(result.stdout)

    return run
