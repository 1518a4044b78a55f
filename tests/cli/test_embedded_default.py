"""Without an address the command line has a broker of its own, in the user's data folder."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.cli.conftest import refusal

from duewheel.cli.broker_command import data_folder
from duewheel.cli.main import main


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home outside pytest's own folder, whose permissions every starting pytest sets anew."""
    monkeypatch.delenv("DUEWHEEL_DSN", raising=False)
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    with tempfile.TemporaryDirectory(prefix="duewheel-test-home-") as folder:
        monkeypatch.setenv("HOME", folder)
        yield Path(folder)


@pytest.mark.slow
def test_command_without_an_address_uses_an_embedded_broker(home: Path) -> None:
    assert CliRunner().invoke(main, ["topic", "create", "t"]).exit_code == 0
    listed = CliRunner().invoke(main, ["topic", "list", "--json"])
    assert [topic["name"] for topic in json.loads(listed.stdout)] == ["t"]
    assert (data_folder() / "broker" / "server.log").exists()
    assert home in data_folder().parents


def test_a_data_folder_that_cannot_be_made_is_one_line(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = home / "file"
    file.touch()
    monkeypatch.setenv("XDG_DATA_HOME", str(file))
    refusal(CliRunner().invoke(main, ["topic", "list"]))
