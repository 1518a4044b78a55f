"""The commands on a real broker: options, output, questions and exit statuses."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pkgutil import walk_packages
from select import select

import click
import psycopg2
import pytest
from psycopg2.extensions import make_dsn
from tests.acting import HOUR, send
from tests.cli.commands import COMMANDS
from tests.cli.conftest import Run, RunJson, refusal
from tests.logins import login
from tests.waiting import ask, connected

import duewheel.cli
from duewheel.cli.main import main
from duewheel.store import Broker, EmbeddedPostgres


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_explains_itself(path: tuple[str, ...]) -> None:
    command = COMMANDS[path]
    explained = command.help or ""
    if not isinstance(command, click.Group):
        assert "as_json" in {parameter.name for parameter in command.params}
        # An example, which tests/test_docs.py calls.
        example = explained.partition("\b\n")[2]
        assert f"duewheel {' '.join(path)}" in example, "end its docstring with \\b and an example"
    else:
        named = re.findall(r"[a-z-]+", explained.partition(": ")[2].partition(".")[0])
        assert sorted(named) == sorted(command.commands), "name them in the first sentence of its docstring"


def test_a_command_that_a_module_defines_can_be_called() -> None:
    known = {id(command) for command in (main, *COMMANDS.values())}
    for found in walk_packages(duewheel.cli.__path__, "duewheel.cli."):
        if not found.name.endswith("__main__"):
            for name, value in vars(import_module(found.name)).items():
                assert not isinstance(value, click.Command) or id(value) in known, (
                    f"add {name} to its noun (@NOUN.command()), or a new noun to _COMMANDS in cli/main.py"
                )


def test_d11_topics_are_made_looked_at_changed_and_deleted(run: Run, run_json: RunJson) -> None:
    made = run_json("topic create t --max-delay 7d --granularity 10ms --queues 2")
    assert made.pop("outcome") == "created"
    assert (made["message_type"], made["max_delay"], made["queues"]) == ("DELAY", 604800, 2)
    assert run_json("topic list") == [made]
    assert run_json("topic show t") == made
    assert run_json("topic update t --retention 1h")["retention"] == 3600
    assert run("topic update t").exit_code == 2
    assert "t\tDELAY\t" in run("topic list").stdout

    levels = run_json("topic create l --delay-level 1m --delay-level 1h")["delay_levels"]
    assert levels == run_json("topic update l --retention 1h")["delay_levels"] == [60, 3600]
    assert "delay levels\t1m 1h\n" in run("topic show l").stdout
    assert run_json("topic update l --delay-level 5s")["delay_levels"] == [5]

    assert run("topic delete t", stdin="n\n").exit_code == 1
    assert len(run_json("topic list")) == 2
    assert run("topic delete t", stdin="y\n").exit_code == 0
    assert run_json("topic delete l --yes") == {"outcome": "deleted", "name": "l"}
    assert run("topic list").stdout == "There are no topics.\n"


def test_answer_says_whether_something_changed(run: Run) -> None:
    for command, first, again in (
        ("topic create t", "Topic t is created.", "exists already, with these settings"),
        ("topic update t --retention 1h", "is changed.", "had these settings already"),
        ("settings update --when-full drop_unread", "are changed.", "had these settings already"),
        ("schedule create s x --topic t --every 1h", "s is created:", "exists already, with these settings"),
        ("schedule pause s", "Schedule s is paused.", "was paused already"),
        ("schedule resume s", "Schedule s is resumed.", "was not paused"),
    ):
        assert first in run(command).stdout
        assert f"{again}: unchanged." in run(command).stdout


def test_message_is_sent_found_recalled_and_its_history_told(
    run: Run, run_json: RunJson, broker: Broker
) -> None:
    broker.create_topic("t", max_delay=timedelta(days=3650))
    options = "--topic t --delay 30m --key 42 --tag a --property x=y"
    sent = run_json("message send", '{"order": 42}', *options.split())
    assert sent["outcome"] == "sent"
    wait = datetime.fromisoformat(sent["deliver_at"]) - datetime.now(UTC)
    assert timedelta(minutes=29) < wait <= timedelta(minutes=30)

    (found,) = run_json(f"message find {sent['message_id']}")
    assert (found["key"], found["tag"]) == ("42", "a")
    assert found["properties"] == {"x": "y", "content-type": "text/plain; charset=utf-8"}
    assert (found["body"], found["recalled"]) == ('{"order": 42}', False)
    assert run_json("message find --topic t --key 42") == [found]

    assert run_json("message recall --topic t --key 42")["outcome"] == "recalled"
    assert run(f"message recall {sent['message_id']}").stdout == "recalled\n"
    assert run_json(f"message history {sent['message_id']}")[-1]["state"] == "Deleted"

    at = "2036-01-05T00:00:00+00:00"
    for given in (at, "2083104000000"):
        assert run_json("message send x --topic t --deliver-at", given)["deliver_at"] == at
    raw = run_json("message send - --topic t --delay 1h", stdin=b"\xff\x00")
    assert run_json(f"message find {raw['message_id']}")[0]["body"] == {"base64": "/wA="}

    line = run_json("message send --topic t --key k --deliver-at", at, "a\nb")
    title, cells = run("message find --topic t --key k").stdout.splitlines()
    assert title.split("\t")[0] == "message id"
    assert cells.split("\t") == [
        *(line["message_id"], "k", "-", "2036-01-05T00:00:00Z"),
        *("no", "no", "-", "a\\nb"),
    ]


def test_messages_are_received_acked_and_counted(run: Run, run_json: RunJson, broker: Broker) -> None:
    broker.create_topic("t")
    sent = run_json("message send hello --topic t --delay 0s --key k")
    (received,) = run_json("message receive --topic t --group g --ack --wait 5s")
    assert (received["message_id"], received["body"]) == (sent["message_id"], "hello")
    assert received["attempt"] == 1
    states = [entry["state"] for entry in run_json(f"message history {sent['message_id']}")]
    assert states == ["Initialized", "Timing", "Ready", "Inflight", "Acked"]
    told = run(f"message history {sent['message_id']}").stdout.splitlines()
    assert [line.split("\t")[1] for line in told[1:]] == ["sent", "waiting", "released", "in flight", "acked"]

    for delay in ("1h", "0s"):
        run(f"message send x --topic t --delay {delay}")
    run("message receive --topic t --group g --wait 5s")
    (topic,) = run_json("stats")["topics"]
    (group,) = topic["groups"]
    assert (topic["topic"], topic["waiting"]) == ("t", 1)
    assert (group["group"], group["inflight"], group["ready"]) == ("g", 1, 0)
    assert run("stats").exit_code == 0


def test_what_cannot_be_printed_is_not_acked(dsn: str, broker: Broker) -> None:
    broker.create_topic("t")
    send(broker, "a")
    command = "message receive --topic t --group g --wait 30s --ack --dsn"
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "duewheel.cli", *command.split(), dsn],
            stdout=full,
            stderr=subprocess.PIPE,
            env=buffered,
            check=False,
        )
    assert done.returncode
    assert b"No space left" in done.stderr
    (bell,) = broker.doorbells(["t"], ["g"])
    assert bell.inflight


def test_x18_stats_name_who_holds_upkeep_up(run: Run, run_json: RunJson, broker: Broker) -> None:
    assert run_json("stats")["upkeep"]["held_up_by"] == []
    with connected(broker.dsn) as session:
        ask(session, "select pg_advisory_lock(duewheel.tick_lock_class(), -2)")
        ask(session, "update duewheel.broker set maintained_at = now() - interval '3 hours'")
        (holder,) = run_json("stats")["upkeep"]["held_up_by"]
        assert (holder["pid"], holder["holds"]) == (session.info.backend_pid, "upkeep")
        said = run("stats").stdout
        assert f"Upkeep is held up: the session with pid {session.info.backend_pid} of login" in said


def test_d09_settings_of_the_broker_are_shown_and_changed(run: Run, run_json: RunJson) -> None:
    settings = run_json("settings show")
    assert (settings["retention_bytes"], settings["when_full"]) == (None, "keep_unread")
    changed = run_json("settings update --retention-bytes 20GiB --when-full drop_unread")
    assert (changed["outcome"], changed["retention_bytes"]) == ("changed", 20 * 1024**3)
    shown = run("settings show").stdout
    assert "retention size\t20GiB\n" in shown
    assert "when full\tdrop_unread\n" in shown
    assert run_json("settings update --retention-bytes 0")["retention_bytes"] is None
    assert run_json("settings show")["when_full"] == "drop_unread"
    assert run_json("settings update --abandoned-after 30d")["abandoned_after"] == 30 * 86400
    assert run_json("settings update --abandoned-after 30d")["outcome"] == "unchanged"
    assert run_json("settings update --abandoned-after 0s")["abandoned_after"] is None


def test_broker_that_was_restored_elsewhere_is_rebased(
    run: Run, run_json: RunJson, broker: Broker, dsn: str
) -> None:
    assert run("db rebase").stdout == "The broker belongs to this database cluster already: unchanged.\n"
    assert run_json("db rebase") == {"rebased": False, "messages": 0, "ticks": 0, "released_late": 0}
    broker.create_topic("t")
    send(broker, "x", delay=HOUR)
    broker.close()
    with connected(dsn) as connection:
        ask(connection, "update duewheel.broker set system_identifier = system_identifier - 1")
    assert "duewheel db rebase" in refusal(run("stats"))
    assert run("db rebase").stdout == (
        "The broker is rebased: 1 message and 0 ticks have new transaction ids, 0 messages released late.\n"
    )
    assert run("stats").exit_code == 0


def test_status_3_says_that_there_was_nothing(run: Run, broker: Broker) -> None:
    broker.create_topic("t")
    send(broker, "x", key="out")
    broker.consumer("t", "g").receive(wait=timedelta(seconds=5))
    for command, words in (
        ("message receive --topic t --group g", "Nothing is due."),
        ("message find --topic t --key other", "Nothing found."),
        ("message recall --topic t --key other", "not_found"),
        ("message recall --topic t --key out", "already_released"),
    ):
        result = run(command)
        assert (result.exit_code, result.stdout) == (3, f"{words}\n")
        result = run(command, "--json")
        assert result.exit_code == 3
        found = json.loads(result.stdout)
        assert not found or (found["outcome"], found["recalled"]) == (words, 0)


def test_a_key_is_recalled_only_if_no_message_was_released(run: Run, broker: Broker) -> None:
    broker.create_topic("t")
    send(broker, "x", key="ladder")
    broker.send("t", "y", delay=timedelta(hours=1), key="ladder")
    broker.consumer("t", "g").receive(wait=timedelta(seconds=5))
    result = run("message recall --topic t --key ladder")
    assert (result.exit_code, result.stdout) == (3, "already_released (recalled: 1, already released: 1)\n")


def test_errors_are_one_line_and_status_1(run: Run, dsn: str, postgres: EmbeddedPostgres) -> None:
    unreachable = "--dsn 'host=127.0.0.1 port=1 dbname=x'"
    for command, words in (
        ("message send x --topic nowhere --delay 1s", "nowhere"),
        ("topic show nowhere", "nowhere"),
        ("dead-letter list --group nobody", "nobody"),
        (f"message history {'00' * 22}", "no message"),
        (f"stats {unreachable}", "cannot be reached"),
        ("db check --dsn", "duewheel db upgrade"),
    ):
        more = [postgres.dsn()] if command.endswith("--dsn") else []
        assert words in refusal(run(command, *more)), command
    no_role = login(dsn, None)
    for command in ("topic list", "message receive --topic t --group g", "db check", "db upgrade"):
        refused = refusal(run(command, "--dsn", no_role))
        assert re.search(r"permission denied for (schema|database)", refused), command
        refused = refusal(run(command, "--dsn", "host=\udcff"))
        assert refused.startswith("Error: the dsn cannot be read ("), command
    turning = refusal(run("wheel run --dsn", login(dsn, "duewheel_consumer")))
    assert "this login may not turn a wheel: it needs the role duewheel_admin" in turning


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
def test_refusal_of_the_database_is_one_line_with_advice(
    run: Run, dsn: str, broker: Broker, body: str, options: str, words: str
) -> None:
    broker.create_topic("t")
    with connected(dsn) as connection, connected(dsn, autocommit=False) as other:
        ask(
            connection,
            "create function refuse() returns trigger language plpgsql as"
            f" $$ begin {body}; return new; end $$;"
            "create trigger refuse before insert on duewheel.message for each row execute function refuse()",
        )
        ask(other, "lock table duewheel.topic in row share mode")
        refused = refusal(run("message send x --topic t --delay 1s --dsn", make_dsn(dsn, options=options)))
    assert refused.startswith("Error: the database refused (")
    assert words in refused


def test_upgrade_says_what_it_did_or_who_refused(run: Run, dsn: str, postgres: EmbeddedPostgres) -> None:
    new = postgres.ensure_database("upgraded_by_the_command_line")
    assert re.fullmatch(r"The schema is upgraded to revision \d+\.\n", run("db upgrade --dsn", new).stdout)
    again = run("db upgrade --dsn", new).stdout
    assert re.fullmatch(r"The schema was at revision \d+ already: unchanged\.\n", again)
    with connected(dsn) as connection:
        ask(
            connection,
            """
            create function frozen() returns event_trigger language plpgsql
            as $$ begin raise exception 'no change before Monday'; end $$;
            create event trigger frozen on ddl_command_start execute function frozen()
            """,
        )
    refused = refusal(run("db upgrade --dsn", dsn))
    assert refused.startswith("Error: the database refused (no change before Monday")


def test_wrong_usage_is_status_2(run: Run) -> None:
    for command in (
        "nonsense",
        "demo --orders 0",
        "topic create t --type ODD",
        "settings update",
        "settings update --retention-bytes much",
        "message send --topic t",
        "message send x --topic t --file f",
        "message send x --topic t --delay soon",
        "message send x --topic t --deliver-at 2030-01-01T00:00:00",
        "message find --key k",
        "message reschedule --topic t --key k",
        "message reschedule --topic t --delay 2h",
        "message recall",
        "message recall --topic t",
        "message recall 00 --topic t",
        "message recall 00 --tag x",
        "message recall-many --tag x",
        "message recall-many --topic t",
        "message recall-many 00 --topic t --tag x",
        "message recall-many --topic t --tag x --everything",
        "message receive --topic t --group g --start yesterday",
        "group rewind g --topic t",
        "group rewind g --topic t --to once",
        "schedule create s x --topic t",
        "schedule create s x --topic t --every 1h --cron '0 5 * * *'",
        "schedule create s x --topic t --every 1h --misfire perhaps",
        "completion tcsh",
    ):
        assert run(command).exit_code == 2, command


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
        ask(listener, "listen duewheel_released")
        broker.send("t", "x", delay=timedelta(milliseconds=50))
        assert select([listener], [], [], 60)[0]
        wheel.terminate()
        assert json.loads(wheel.stdout.read()) == {"stopped": True}
        assert wheel.wait() == 0
    assert broker.stats().topics[0].waiting == 0
