"""TAB: in a real bash with the script it is given, and what zsh is answered, which needs no zsh."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from psycopg2.extensions import make_dsn

from duewheel.cli.main import main
from duewheel.store import Broker

# Does what bash does when TAB is pressed behind the last word of a line, and prints what is offered.
_PRESS_TAB = """
source <(duewheel completion bash)
while read -ra COMP_WORDS; do
    COMPREPLY=()
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    _duewheel_completion duewheel "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
    echo "${COMPREPLY[@]}"
done
"""


@pytest.fixture
def patient(dsn: str) -> str:
    """The address of the test's database, which may take its time."""
    return make_dsn(dsn, connect_timeout=240, options="-c statement_timeout=240s")


def test_bash_completes_commands_topics_and_groups(patient: str, broker: Broker) -> None:
    for name in ("orders", "order-steps", "returns"):
        broker.create_topic(name)
    broker.consumer("orders", "canceller")
    bash = shutil.which("bash")
    assert bash is not None
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [bash, "--norc", "-c", _PRESS_TAB],
        input="duewheel mes\nduewheel message receive --topic ord\nduewheel group rewind c\n",
        env={**os.environ, "PATH": path, "DUEWHEEL_DSN": patient},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["message", "order-steps orders", "canceller"]


def completed(words: str, shell: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The answer of the command line to a shell that completes the last of these words."""
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(shlex.split(f"{words}x")) - 1))
    monkeypatch.setenv("_DUEWHEEL_COMPLETE", f"{shell}_complete")
    result = CliRunner().invoke(main, [], prog_name="duewheel")
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


def test_names_of_a_broker_that_is_named_in_the_line_are_offered(
    patient: str, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DUEWHEEL_DSN", raising=False)
    broker.create_topic("orders")
    address = f"--dsn {shlex.quote(patient)}"
    for command, last in (("topic show", ""), ("message list", "--topic o"), ("message list", "-t ")):
        words = f"duewheel {command} {address} {last}"
        assert "orders" in completed(words, "bash", monkeypatch), words


def test_broker_that_is_away_offers_nothing_and_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    for dsn_of_none in ("", "host=127.0.0.1 port=1 dbname=x", "no address"):
        monkeypatch.setenv("DUEWHEEL_DSN", dsn_of_none)
        assert completed("duewheel topic show ", "bash", monkeypatch).strip() == ""


def test_zsh_is_given_its_script_and_every_noun_and_option(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "#compdef duewheel" in CliRunner().invoke(main, ["completion", "zsh"]).stdout
    lines = completed("duewheel ", "zsh", monkeypatch).splitlines()
    assert {"message", "topic", "group", "dead-letter", "schedule", "wheel", "db"} <= set(lines)
    assert "--idempotency-key" in completed("duewheel message send --i", "zsh", monkeypatch)
    assert "keep" in completed("duewheel message send x --on-conflict k", "zsh", monkeypatch)
