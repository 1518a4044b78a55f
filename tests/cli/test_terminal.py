"""The command line in a real terminal: tables that fit, colours, a bar, and tables that change in place."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import threading

import pytest
from psycopg2.extensions import parse_dsn
from rich.console import Console
from tests.acting import HOUR
from tests.cli.terminal import Terminal
from tests.waiting import ask, connected

from duewheel.cli import progress
from duewheel.store import Broker, EmbeddedPostgres
from duewheel.store.database import migration


def plain(screen: str) -> str:
    """The text on the screen, without colours and movements of the cursor."""
    return re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", screen)


def test_table_fits_the_window_and_has_colours(dsn: str, broker: Broker) -> None:
    broker.create_topic("t")
    sent = broker.send("t", "x" * 300, delay=HOUR, key="k")
    with Terminal("message find --topic t --key k --dsn", dsn, columns=120) as terminal:
        screen = terminal.rest()
        assert terminal.process.wait() == 0
    title, line = plain(screen).splitlines()
    assert title.split()[:2] == ["message", "id"]
    assert line.startswith(sent.message_id)
    assert line.rstrip().endswith("x…")
    assert len(line) <= 120
    assert "\x1b[1;36m" in screen


def test_watch_changes_in_place_whatever_happens_until_ctrl_c(
    dsn: str, broker: Broker, postgres: EmbeddedPostgres
) -> None:
    name = parse_dsn(dsn)["dbname"]
    allow = "alter database {} allow_connections {}"
    broker.create_topic("orders")
    broker.consumer("orders", "handler")
    with (
        Terminal("watch --interval 50ms --dsn", dsn) as terminal,
        connected(postgres.dsn()) as administrator,
    ):
        terminal.read_until("orders")
        terminal.read_until("handler")
        with broker.connection() as connection, connection.cursor() as cursor:
            cursor.execute("set application_name = 'duewheel wheel on a:1'")
            terminal.read_until("1 wheel: a:1.")
            cursor.execute("reset application_name")
        ask(administrator, allow.format(name, "false"))
        ask(administrator, "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", name)
        terminal.read_until("The numbers are out of date: ")
        ask(administrator, allow.format(name, "true"))
        broker.create_topic("returns")
        terminal.read_until("returns")
        terminal.press_ctrl_c()
        screen = terminal.rest()
        assert terminal.process.wait() == 0
    assert "Traceback" not in screen
    # Each refresh overwrites the one before.
    assert "\x1b[1A" in screen


def test_watch_in_a_pipe_writes_one_look_after_the_other(dsn: str, broker: Broker) -> None:
    broker.create_topic("orders")
    broker.consumer("orders", "handler")
    watching = [sys.executable, "-m", "duewheel.cli", "watch", "--interval", "50ms", "--dsn", dsn]

    def seen(lines: int, *options: str) -> list[str]:
        with subprocess.Popen([*watching, *options], stdout=subprocess.PIPE, text=True) as watch:
            assert watch.stdout is not None
            read = [watch.stdout.readline() for _ in range(lines)]
            watch.terminate()
            watch.stdout.read()
            assert watch.wait() == 0
        return read

    looks = seen(10)
    assert len([look for look in looks if look.startswith("orders\tDELAY\t0\t")]) == 2
    assert "No wheel turns.\n" in looks[0]
    for look in map(json.loads, seen(2, "--json")):
        assert set(look) == {"at", "wheels", "overdue", "topics"}
        assert [(topic["topic"], topic["late_p99"]) for topic in look["topics"]] == [("orders", None)]
    refused = subprocess.run([*watching, "--topic", "nowhere"], capture_output=True, text=True, check=False)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "there is no topic" in refused.stderr


def test_long_work_shows_a_bar_that_goes_away(dsn: str) -> None:
    with connected(dsn) as other:
        ask(other, "select pg_advisory_lock(%s)", migration.UPGRADE_LOCK)
        at_once = "from duewheel.cli import progress; progress.AFTER_SECONDS = 0"
        with Terminal("db upgrade --dsn", dsn, first=at_once) as terminal:
            # The upgrade waits for the lock until the bar is there.
            terminal.read_until("Upgrading")
            ask(other, "select pg_advisory_unlock(%s)", migration.UPGRADE_LOCK)
            screen = terminal.rest()
            assert terminal.process.wait() == 0
    assert plain(screen).splitlines()[-1].startswith("The schema was at revision")


class _Listened(io.StringIO):
    """A terminal that says when it is written to."""

    def __init__(self) -> None:
        super().__init__()
        self.written = threading.Event()

    def write(self, text: str) -> int:
        if "Counting" in text:
            self.written.set()
        return super().write(text)


def test_bar_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "AFTER_SECONDS", 0)
    file = _Listened()
    with progress.progress("Counting", 10, output=Console(file=file, force_terminal=True)) as advance:
        advance(3)
        assert file.written.wait(120)
    assert " 3/10 " in plain(file.getvalue())


def test_short_work_and_work_in_a_pipe_show_none(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = io.StringIO()
    with progress.progress("Counting", output=Console(file=terminal, force_terminal=True)) as advance:
        advance(1)
    with progress.progress("Counting") as advance:
        advance(1)
    assert "Counting" not in terminal.getvalue() + capsys.readouterr().err
