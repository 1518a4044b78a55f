"""Every command on a real broker: what it answers, and its exit status."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pkgutil import walk_packages
from select import select
from typing import Any

import click
import psycopg2
import pytest
from click.testing import Result
from psycopg2.extensions import make_dsn
from tests.cli.commands import COMMANDS
from tests.logins import login
from tests.waiting import ask, connected

import duewheel.cli
from duewheel.cli.main import main
from duewheel.store import Broker, EmbeddedPostgres

Run = Callable[..., Result]
RunJson = Callable[..., Any]


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_explains_with_an_example(path: tuple[str, ...], run: Run) -> None:
    result = run(*path, "--help")
    assert result.exit_code == 0
    if isinstance(COMMANDS[path], click.Group):
        assert f"duewheel {path[0]}" in (COMMANDS[path].help or "")
    else:
        # Its own words, with what it needs: tests/test_docs.py calls each example.
        assert f"duewheel {' '.join(path)}" in (COMMANDS[path].help or "")
    assert not re.findall(r"\b[DLWRX]\d\d\b", result.stdout)


@pytest.mark.parametrize(
    "path", [path for path, command in COMMANDS.items() if not isinstance(command, click.Group)], ids=" ".join
)
def test_every_command_can_answer_in_json(path: tuple[str, ...]) -> None:
    assert "as_json" in {parameter.name for parameter in COMMANDS[path].params}


def test_a_command_that_a_module_defines_can_be_called() -> None:
    modules = [
        import_module(found.name)
        for found in walk_packages(duewheel.cli.__path__, "duewheel.cli.")
        if not found.name.endswith("__main__")
    ]
    defined = {
        f"{module.__name__}.{name}": value
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, click.Command) and value is not main
    }
    callable_ones = {id(command) for command in COMMANDS.values()}
    assert [name for name, command in defined.items() if id(command) not in callable_ones] == [], (
        "add it to its noun (@NOUN.command()), or a new noun to _COMMANDS in cli/main.py"
    )


@pytest.mark.parametrize(
    "path",
    [path for path, one in COMMANDS.items() if isinstance(one, click.Group) and path != ("demo",)],
    ids=" ".join,
)
def test_the_help_of_a_noun_names_its_verbs(path: tuple[str, ...]) -> None:
    noun = COMMANDS[path]
    assert isinstance(noun, click.Group)
    named = re.findall(r"[a-z-]+", (noun.help or "").partition(": ")[2].partition(".")[0])
    assert sorted(named) == sorted(noun.commands), "name them in the first sentence of its docstring"


def test_module_runs_as_a_program() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "duewheel.cli", "--version"], capture_output=True, text=True, check=True
    )
    assert result.stdout.startswith("duewheel, version ")


def test_d11_topics_are_made_looked_at_changed_and_deleted(run: Run, run_json: RunJson) -> None:
    made = run_json("topic", "create", "t", "--max-delay", "7d", "--granularity", "10ms", "--queues", "2")
    assert (made["name"], made["message_type"], made["max_delay"], made["queues"]) == (
        "t",
        "DELAY",
        604800,
        2,
    )
    assert made.pop("outcome") == "created"
    assert run_json("topic", "list") == [made]
    assert run_json("topic", "show", "t") == made
    assert run_json("topic", "update", "t", "--retention", "1h")["retention"] == 3600
    assert "t\tDELAY\t" in run("topic", "list").stdout
    assert run_json("topic", "delete", "t", "--yes") == {"outcome": "deleted", "name": "t"}
    assert run("topic", "list").stdout == "There are no topics.\n"


def test_answer_says_whether_something_was_changed(run: Run) -> None:
    for command, first, again in (
        (
            ("topic", "create", "t"),
            "Topic t is created.",
            "exists already, with these settings: unchanged.",
        ),
        (
            ("topic", "update", "t", "--retention", "1h"),
            "is changed.",
            "had these settings already: unchanged.",
        ),
        (("settings", "update", "--when-full", "drop_unread"), "are changed.", "already: unchanged."),
        (
            ("schedule", "add", "s", "x", "--topic", "t", "--every", "1h"),
            "s is added:",
            "already, with these",
        ),
        (("schedule", "pause", "s"), "Schedule s is paused.", "Schedule s was paused already: unchanged."),
        (("schedule", "resume", "s"), "Schedule s is resumed.", "Schedule s was not paused: unchanged."),
    ):
        assert first in run(*command).stdout
        assert again in run(*command).stdout


def test_topic_is_deleted_only_when_said_yes(run: Run, broker: Broker) -> None:
    broker.create_topic("t")
    assert run("topic", "delete", "t", stdin="n\n").exit_code == 1
    assert [topic.name for topic in broker.topics()] == ["t"]
    assert run("topic", "delete", "t", stdin="y\n").exit_code == 0
    assert broker.topics() == []


def test_l04_topic_has_delay_levels_of_its_own(run: Run, run_json: RunJson) -> None:
    levels = ("--delay-level", "1m", "--delay-level", "1h")
    assert run_json("topic", "create", "t", *levels)["delay_levels"] == [60, 3600]
    assert "delay levels\t1m 1h\n" in run("topic", "show", "t").stdout
    assert run_json("topic", "update", "t", "--delay-level", "5s")["delay_levels"] == [5]
    assert run_json("topic", "update", "t", "--retention", "1h")["delay_levels"] == [5]


def test_topic_update_needs_something_to_change(run: Run, broker: Broker) -> None:
    broker.create_topic("t")
    assert run("topic", "update", "t").exit_code == 2


def test_message_is_sent_found_recalled_and_its_history_told(
    run: Run, run_json: RunJson, broker: Broker
) -> None:
    broker.create_topic("t")
    sent = run_json(
        "message",
        "send",
        '{"order": 42}',
        "--topic",
        "t",
        "--delay",
        "30m",
        "--key",
        "42",
        "--tag",
        "a",
        "--property",
        "x=y",
    )
    assert sent["outcome"] == "sent"
    wait = datetime.fromisoformat(sent["deliver_at"]) - datetime.now(UTC)
    assert timedelta(minutes=29) < wait <= timedelta(minutes=30)

    (found,) = run_json("message", "find", sent["message_id"])
    assert (found["key"], found["tag"]) == ("42", "a")
    assert found["properties"] == {"x": "y", "content-type": "text/plain; charset=utf-8"}
    assert (found["body"], found["recalled"]) == ('{"order": 42}', False)
    assert run_json("message", "find", "--topic", "t", "--key", "42") == [found]

    assert run_json("message", "recall", "--topic", "t", "--key", "42")["outcome"] == "recalled"
    assert run("message", "recall", sent["message_id"]).stdout in ("recalled\n", "not_found\n")
    assert [entry["state"] for entry in run_json("message", "history", sent["message_id"])][-1] == "Deleted"


def test_d01_message_is_sent_for_an_instant(run_json: RunJson, broker: Broker) -> None:
    broker.create_topic("t")
    at = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    sent = run_json("message", "send", "x", "--topic", "t", "--at", at.isoformat())
    assert datetime.fromisoformat(sent["deliver_at"]) == at
    sent = run_json("message", "send", "x", "--topic", "t", "--at", str(int(at.timestamp() * 1000)))
    assert datetime.fromisoformat(sent["deliver_at"]) == at


def test_body_comes_from_standard_input_as_it_is(run_json: RunJson, broker: Broker) -> None:
    broker.create_topic("t")
    sent = run_json("message", "send", "-", "--topic", "t", "--delay", "1h", stdin=b"\xff\x00")
    (found,) = run_json("message", "find", sent["message_id"])
    assert found["body"] == {"base64": "/wA="}


def test_what_cannot_be_printed_is_not_acked(dsn: str, broker: Broker) -> None:
    broker.create_topic("t")
    broker.send("t", b"a", delay=timedelta(0))
    command = ["message", "receive", "--topic", "t", "--group", "g", "--wait", "30s", "--ack", "--dsn"]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "duewheel.cli", *command, dsn],
            stdout=full,
            stderr=subprocess.PIPE,
            env=buffered,
            check=False,
        )
    assert done.returncode
    assert b"No space left" in done.stderr
    (bell,) = broker.doorbells(["t"], ["g"])
    assert bell.inflight


def test_d03_message_due_at_once_is_received_and_acked(run: Run, run_json: RunJson, broker: Broker) -> None:
    broker.create_topic("t")
    sent = run_json("message", "send", "hello", "--topic", "t", "--delay", "0s", "--key", "k")
    (received,) = run_json("message", "receive", "--topic", "t", "--group", "g", "--ack", "--wait", "5s")
    assert (received["message_id"], received["body"]) == (sent["message_id"], "hello")
    assert received["attempt"] == 1
    assert run("message", "receive", "--topic", "t", "--group", "g").stdout == "Nothing is due.\n"
    states = [entry["state"] for entry in run_json("message", "history", sent["message_id"])]
    assert states == ["Initialized", "Timing", "Ready", "Inflight", "Acked"]
    told = run("message", "history", sent["message_id"]).stdout.splitlines()
    assert [line.split("\t")[1] for line in told[1:]] == ["sent", "waiting", "released", "in flight", "acked"]


def test_stats_tell_what_waits_and_what_is_leased(run: Run, run_json: RunJson, broker: Broker) -> None:
    broker.create_topic("t")
    run("message", "send", "x", "--topic", "t", "--delay", "1h")
    run("message", "send", "x", "--topic", "t", "--delay", "0s")
    run("message", "receive", "--topic", "t", "--group", "g", "--wait", "5s")
    stats = run_json("stats")
    (topic,) = stats["topics"]
    (group,) = topic["groups"]
    assert (topic["topic"], topic["waiting"]) == ("t", 1)
    assert (group["group"], group["inflight"], group["ready"]) == ("g", 1, 0)
    assert run("stats").exit_code == 0


def test_x18_stats_name_who_holds_upkeep_up(run: Run, run_json: RunJson, broker: Broker) -> None:
    assert run_json("stats")["upkeep"]["held_up_by"] == []
    with connected(broker.dsn) as session:
        ask(session, "select pg_advisory_lock(duewheel.tick_lock_class(), -2)")
        ask(session, "update duewheel.broker set maintained_at = now() - interval '3 hours'")
        (holder,) = run_json("stats")["upkeep"]["held_up_by"]
        assert (holder["pid"], holder["holds"]) == (session.info.backend_pid, "upkeep")
        said = run("stats").stdout
        assert f"Upkeep is held up: the session with pid {session.info.backend_pid} of login" in said


def test_r14_dead_letters_of_a_group_are_listed(run: Run, run_json: RunJson, broker: Broker) -> None:
    broker.create_topic("t")
    broker.consumer("t", "g")
    assert run_json("dead-letter", "list", "--group", "g") == []
    assert run("dead-letter", "list", "--group", "g").stdout == "g has no dead letters.\n"
    with broker.connection() as connection, connection.cursor() as cursor:
        cursor.execute("update duewheel.consumer_group set max_retries = 0")
    sent = broker.send("t", "x", delay=timedelta(0), key="k")
    consumer = broker.consumer("t", "g")
    consumer.nack(consumer.receive(wait=timedelta(seconds=5)), reason="no such order")
    for options in ((), ("--open",), ("--topic", "t")):
        (letter,) = run_json("dead-letter", "list", "--group", "g", *options)
        assert (letter["message_id"], letter["key"], letter["reason"]) == (
            sent.message_id,
            "k",
            "no such order",
        )
    assert run_json("dead-letter", "list", "--group", "g", "--redriven") == []
    assert sent.message_id in run("dead-letter", "list", "--group", "g").stdout


def test_d09_settings_of_the_broker_are_shown_and_changed(run: Run, run_json: RunJson) -> None:
    settings = run_json("settings", "show")
    assert (settings["retention_bytes"], settings["when_full"]) == (None, "keep_unread")
    update = ("settings", "update")
    changed = run_json(*update, "--retention-bytes", "20GiB", "--when-full", "keep_unread")
    assert (changed["outcome"], changed["retention_bytes"]) == ("changed", 20 * 1024**3)
    shown = run("settings", "show").stdout
    assert "retention size\t20GiB\n" in shown
    assert "when full\tkeep_unread\n" in shown
    assert run_json(*update, "--retention-bytes", "0")["retention_bytes"] is None
    assert run_json("settings", "show")["when_full"] == "keep_unread"
    assert run_json(*update, "--abandoned-after", "30d")["abandoned_after"] == 30 * 86400
    assert run_json("settings", "show")["abandoned_after"] == 30 * 86400
    assert run_json(*update, "--abandoned-after", "30d")["outcome"] == "unchanged"
    assert run_json(*update, "--abandoned-after", "0s")["abandoned_after"] is None
    assert run(*update, "--retention-bytes", "much").exit_code == 2
    assert run(*update).exit_code == 2


def test_broker_that_was_restored_elsewhere_is_rebased(
    run: Run, run_json: RunJson, broker: Broker, dsn: str
) -> None:
    assert run("db", "rebase").stdout == "The broker belongs to this database cluster already: unchanged.\n"
    assert run_json("db", "rebase") == {"rebased": False, "messages": 0, "ticks": 0, "released_late": 0}
    broker.create_topic("t")
    broker.send("t", "x", delay=timedelta(hours=1))
    broker.close()
    with closing(psycopg2.connect(dsn)) as connection, connection, connection.cursor() as cursor:
        cursor.execute("update duewheel.broker set system_identifier = system_identifier - 1")
    refused = run("stats")
    assert refused.exit_code == 1
    assert "duewheel db rebase" in refused.stderr
    assert run("db", "rebase").stdout == (
        "The broker is rebased: 1 message and 0 ticks have new transaction ids, 0 messages released late.\n"
    )
    assert run("stats").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("message", "receive", "--topic", "t", "--group", "g"), "Nothing is due."),
        (("message", "find", "--topic", "t", "--key", "other"), "Nothing found."),
        (("message", "recall", "--topic", "t", "--key", "other"), "not_found"),
        (("message", "recall", "--topic", "t", "--key", "out"), "already_released"),
    ],
)
def test_status_3_says_that_there_was_nothing(
    run: Run, broker: Broker, arguments: tuple[str, ...], words: str
) -> None:
    broker.create_topic("t")
    broker.send("t", "x", key="out", delay=timedelta(0))
    broker.consumer("t", "g").receive(wait=timedelta(seconds=5))
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (3, f"{words}\n")
    result = run(*arguments, "--json")
    assert result.exit_code == 3
    assert json.loads(result.stdout) in ([], {"outcome": words, "message_id": None})


def test_messages_are_shown_on_one_line_each(run: Run, broker: Broker) -> None:
    broker.create_topic("t", max_delay=timedelta(days=36500 // 10))
    sent = broker.send("t", "a\nb", deliver_at=datetime(2036, 1, 5, tzinfo=UTC), key="k")
    title, line = run("message", "find", "--topic", "t", "--key", "k").stdout.splitlines()
    assert title.split("\t")[0] == "message id"
    assert line.split("\t") == [sent.message_id, "k", "-", "2036-01-05T00:00:00Z", "no", "no", "-", "a\\nb"]
    assert "max delay\t3650d\n" in run("topic", "show", "t").stdout


def test_database_is_upgraded_and_checked(run: Run, run_json: RunJson) -> None:
    assert run_json("db", "upgrade") == {"outcome": "unchanged", **run_json("db", "check")}
    assert run("db", "check").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("message", "send", "x", "--topic", "nowhere", "--delay", "1s"), "nowhere"),
        (("topic", "show", "nowhere"), "nowhere"),
        (("dead-letter", "list", "--group", "nobody"), "nobody"),
        (("message", "history", "00" * 22), "no message"),
        (("stats", "--dsn", "host=127.0.0.1 port=1 dbname=x"), "cannot be reached"),
    ],
)
def test_error_of_the_broker_is_one_message_and_status_1(
    run: Run, arguments: tuple[str, ...], words: str
) -> None:
    result = run(*arguments)
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: ")
    assert words in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def refuse(dsn: str, body: str) -> None:
    """From now on a send does this instead."""
    with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        cursor.execute(
            "create function refuse() returns trigger language plpgsql as"
            f" $$ begin {body}; return new; end $$;"
            "create trigger refuse before insert on duewheel.message for each row execute function refuse()"
        )
        connection.commit()


@pytest.mark.parametrize(
    ("body", "options", "words"),
    [
        ("perform pg_sleep(600)", "-c statement_timeout=300ms", "raise statement_timeout"),
        ("raise exception using errcode = '53100', message = 'no\nspace'", "", "no space; SQLSTATE 53100"),
        ("raise exception using errcode = '53200', hint = 'Buy some.'", "", "Buy some."),
        ("raise exception using errcode = '40P01'", "", "try again"),
        ("lock table duewheel.topic in exclusive mode nowait", "", "raise lock_timeout"),
        ("perform 1 / 0", "", "the log of the database's server"),
    ],
)
def test_refusal_of_the_database_is_one_line_and_status_1(
    run: Run, dsn: str, broker: Broker, body: str, options: str, words: str
) -> None:
    broker.create_topic("t")
    refuse(dsn, body)
    with closing(psycopg2.connect(dsn)) as other, other.cursor() as cursor:
        cursor.execute("lock table duewheel.topic in row share mode")
        result = run(
            "message", "send", "x", "--topic", "t", "--delay", "1s", "--dsn", make_dsn(dsn, options=options)
        )
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: the database refused (")
    assert words in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ("topic", "list"),
        ("stats",),
        ("message", "send", "x", "--topic", "t", "--delay", "1s"),
        ("message", "receive", "--topic", "t", "--group", "g"),
        ("group", "list"),
        ("db", "check"),
        ("db", "upgrade"),
    ],
    ids=" ".join,
)
def test_login_without_a_right_is_told_so_in_one_line(run: Run, dsn: str, arguments: tuple[str, ...]) -> None:
    result = run(*arguments, "--dsn", login(dsn, None))
    assert result.exit_code == 1
    assert re.search(r"permission denied for (schema|database)", result.stderr)
    assert result.stderr.count("\n") == 1


def test_upgrade_that_the_database_refuses_is_told_in_one_line(run: Run, dsn: str) -> None:
    with connected(dsn) as connection, connection.cursor() as cursor:
        cursor.execute("""
            create function frozen() returns event_trigger language plpgsql
            as $$ begin raise exception 'no change before Monday'; end $$;
            create event trigger frozen on ddl_command_start execute function frozen()
        """)
    result = run("db", "upgrade", "--dsn", dsn)
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: the database refused (no change before Monday")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("command", [("topic", "list"), ("db", "upgrade"), ("db", "check"), ("wheel", "run")])
def test_address_that_is_no_text_is_told_in_one_line(run: Run, command: tuple[str, ...]) -> None:
    result = run(*command, "--dsn", "host=\udcff")
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: the dsn cannot be read (")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("message", "send", "--topic", "t"),
        ("message", "send", "x", "--topic", "t", "--delay", "soon"),
        ("message", "send", "x", "--topic", "t", "--at", "2030-01-01T00:00:00"),
        (
            "message",
            "recall",
        ),
        ("message", "recall", "00", "--topic", "t"),
        ("message", "find", "--key", "k"),
        ("nonsense",),
        ("topic", "create", "t", "--type", "ODD"),
        ("demo", "--orders", "3", "up"),
    ],
)
def test_wrong_usage_is_status_2(run: Run, arguments: tuple[str, ...]) -> None:
    assert run(*arguments).exit_code == 2


def test_x19_a_login_that_may_not_turn_a_wheel_is_told_before_it_starts(run: Run, dsn: str) -> None:
    refused = run("wheel", "run", "--dsn", login(dsn, "duewheel_consumer"))
    assert refused.exit_code == 1
    assert refused.stderr == (
        "Error: this login may not turn a wheel: it needs the role duewheel_admin; let an administrator of"
        " the database grant it\n"
    )


def test_wheel_releases_until_sigterm(dsn: str, broker: Broker) -> None:
    broker.create_topic("t")
    with (
        subprocess.Popen(
            [sys.executable, "-m", "duewheel.cli", "wheel", "run", "--dsn", dsn, "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as wheel,
        closing(psycopg2.connect(dsn)) as listener,
    ):
        assert wheel.stderr is not None
        assert wheel.stdout is not None
        assert wheel.stderr.readline() == "The wheel is turning. Ctrl-C ends it.\n"
        listener.autocommit = True
        with listener.cursor() as cursor:
            cursor.execute("listen duewheel_released")
        broker.send("t", "x", delay=timedelta(milliseconds=50))
        assert select([listener], [], [], 60)[0]
        wheel.terminate()
        assert json.loads(wheel.stdout.read()) == {"stopped": True}
        assert wheel.wait() == 0
    (topic,) = broker.stats().topics
    assert topic.waiting == 0


def test_new_schema_is_told_from_one_that_was_there(run: Run, postgres: EmbeddedPostgres) -> None:
    upgrade = ("db", "upgrade", "--dsn", postgres.ensure_database("upgraded_by_the_command_line"))
    assert re.fullmatch(r"The schema is upgraded to revision \d+\.\n", run(*upgrade).stdout)
    assert re.fullmatch(r"The schema was at revision \d+ already: unchanged\.\n", run(*upgrade).stdout)


def test_missing_schema_is_told(run: Run, postgres: EmbeddedPostgres) -> None:
    result = run("db", "check", "--dsn", postgres.dsn())
    assert result.exit_code == 1
    assert "duewheel db upgrade" in result.stderr
