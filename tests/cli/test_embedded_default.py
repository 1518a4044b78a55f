"""Without an address the command line has a broker of its own, in the user's data folder."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from duewheel.cli.broker_command import data_folder
from duewheel.cli.main import main


@pytest.fixture
def home() -> Iterator[Path]:
    """A home outside pytest's own folder, whose permissions every starting pytest sets anew."""
    folder = Path(tempfile.mkdtemp(prefix="duewheel-test-home-"))
    yield folder
    shutil.rmtree(folder)


@pytest.mark.slow
def test_command_without_an_address_uses_an_embedded_broker(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DUEWHEEL_DSN", raising=False)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    assert CliRunner().invoke(main, ["topic", "create", "t"]).exit_code == 0
    listed = CliRunner().invoke(main, ["topic", "list", "--json"])
    assert [topic["name"] for topic in json.loads(listed.stdout)] == ["t"]
    assert (data_folder() / "broker" / "server.log").exists()
    assert home in data_folder().parents


def test_a_data_folder_that_cannot_be_made_is_one_line(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DUEWHEEL_DSN", raising=False)
    file = home / "file"
    file.touch()
    monkeypatch.setenv("HOME", str(file))
    monkeypatch.setenv("XDG_DATA_HOME", str(file))
    result = CliRunner().invoke(main, ["topic", "list"])
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: ")
    assert len(result.stderr.splitlines()) == 1
