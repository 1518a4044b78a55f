"""`--json`: each command has one shape, the one that the reference says."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
from tests.acting import send
from tests.cli.commands import COMMANDS
from tests.cli.conftest import Run

from duewheel.store import Broker, RetryPolicy

_PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "command-line.md").read_text()


def documented() -> dict[str, tuple[type, set[str]]]:
    """For each command of the reference whether it answers with a list or an object, and its fields."""
    shapes: dict[str, tuple[type, set[str]]] = {}
    row = r"^\| `duewheel ([a-z -]+)[A-Z_ ]*` \| [^|]* \| (array|object) \| (.+) \|$"
    rows = re.findall(row, _PAGE, re.MULTILINE)
    for _ in range(2):
        # The second time all that is referred to is known.
        for command, kind, said in rows:
            own = re.sub(r"\(.*?\)|: .*| as `.*", "", said)
            fields = set(re.findall(r"`(\w+)`", own))
            for referred in re.findall(r"as `([a-z ]+)`", said):
                fields |= shapes.get(referred, (list, set()))[1]
            shapes[command.strip()] = (list if kind == "array" else dict, fields)
    return shapes


def test_every_command_answers_as_documented(run: Run, broker: Broker, tmp_path: Path) -> None:
    shapes = documented()
    # A file of messages is another way to send.
    assert set(shapes) - {"message send --file"} == {
        " ".join(path) for path, command in COMMANDS.items() if not isinstance(command, click.Group)
    }, "add the command to the table of docs/reference/command-line.md"
    # What a wheel, a watch and the demo answer with stands where they are run.
    left = set(shapes) - {"wheel run", "watch", "demo"}

    def shaped(line: str) -> Any:
        command = max((known for known in shapes if f"{line} ".startswith(f"{known} ")), key=len)
        result = run(line, "--json")
        assert result.exit_code in (0, 3), result.stderr
        document = json.loads(result.stdout)
        kind, fields = shapes[command]
        assert type(document) is kind, command
        for one in document if kind is list else [document]:
            assert set(one) == fields, command
        left.discard(command)
        return document

    for command in ("db upgrade", "db check", "db rebase", "settings show", "topic list", "stats", "doctor"):
        shaped(command)
    shaped("settings update --when-full keep_unread")
    shaped("completion zsh")
    shaped("db sql")
    for _ in ("created", "unchanged"):
        shaped("topic create t")
        shaped("topic update t --retention 72h")
        shaped("schedule create s x --topic t --every 1h")
        shaped("schedule pause s")
        shaped("schedule resume s")
    assert shaped("topic list")
    shaped("topic show t")
    assert shaped("schedule list")
    shaped("schedule delete s")

    shaped("message find --topic t --key a")
    shaped("message recall --topic t --key a")
    file = tmp_path / "messages.jsonl"
    file.write_text('{"body": "a", "key": "a"}\n')
    shaped(f"message send --file {file} --topic t --delay 1h")
    sent = shaped("message send b --topic t --delay 1h --key b")
    assert shaped("message find --topic t --key a")
    assert len(shaped("message list")) == 2
    assert shaped("message reschedule --topic t --key a --delay 2h")
    assert shaped(f"message history {sent['message_id']}")
    shaped("message recall --topic t --key a")
    assert shaped("message answer 1 --topic t --key b")["outcome"] == "answered"
    shaped("message send b --topic t --delay 1h --key b")
    assert shaped("message recall-many --topic t --everything")["recalled"] == 1

    assert shaped("message receive --topic t --group g") == []
    consumer = broker.consumer("t", "g", retry=RetryPolicy.unordered(0))
    send(broker, "x")
    (held,) = shaped("message receive --topic t --group g --wait 30s --invisible 12h")
    assert shaped(f"group retry-now g {held['message_id']}")["retried"] == []
    assert len(shaped("lease list")) == 1
    shaped("lease release 1.1.0.999.1")
    send(broker, "x")
    consumer.nack(consumer.receive(wait=timedelta(seconds=30)), reason="no")
    assert shaped("dead-letter list --group g")
    assert shaped("dead-letter discard --group g --dry-run")["discarded"] == 1
    assert shaped("dead-letter redrive --group g")["redriven"] == 1
    assert shaped("stats")["topics"]
    assert shaped("group list")
    shaped("group set-subscription g --topic t")
    shaped("group rename g h")
    shaped("group rename h g")
    shaped("group pause g")
    shaped("group resume g")
    shaped("group rewind g --topic t --to earliest")
    shaped("group delete g --yes")
    shaped("topic delete t --yes")
    assert not left, "call each of these by shaped(), in a state where it has something to answer"
