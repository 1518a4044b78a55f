"""A file of messages: what a line may say, portions, what is told when a line is wrong, and going on."""

from __future__ import annotations

import base64
import json
import re
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.cli.conftest import Run, RunJson, refusal
from tests.waiting import until

from duewheel.cli import message_file
from duewheel.store import Broker

SEND = "message send --topic t --delay 1h --file"


@pytest.fixture
def file(tmp_path: Path, broker: Broker) -> Path:
    """A file to be sent to the topic `t`, which is there."""
    broker.create_topic("t")
    return tmp_path / "messages.jsonl"


def lines(*messages: object) -> str:
    return "".join(json.dumps(message) + "\n" for message in messages)


def test_line_says_what_an_option_says_and_wins(run_json: RunJson, broker: Broker, file: Path) -> None:
    at = datetime(2036, 1, 5, tzinfo=UTC)
    broker.update_topic("t", max_delay=timedelta(days=3660))
    file.write_text(
        lines({"body": "text", "key": "1", "delay": "2h", "properties": {"a": 1}, "tag": None})
        + "\n"
        + lines(
            {"body": {"order": 42}, "key": "2", "deliver_at": at.isoformat(), "tag": "own"},
            {"body": {"base64": base64.b64encode(b"\xff").decode()}, "key": "3", "delay": 7200},
            {"body": "x", "key": "4", "deliver_at": int(at.timestamp() * 1000)},
            {"body": "x", "key": "5"},
        )
    )
    before = datetime.now(UTC)
    sent = run_json(f"{SEND} {file} --tag all")
    assert sent == {"transactions": 1, "sent": 5, "duplicate": 0, "kept": 0, "replaced": 0}
    found = [broker.find_key("t", str(key))[0] for key in range(1, 6)]
    assert [json.loads(found[1].body), *(one.body for one in found[::2])] == [
        {"order": 42},
        b"text",
        b"\xff",
        b"x",
    ]
    assert [one.tag for one in found] == ["all", "own", "all", "all", "all"]
    assert found[0].properties == {"a": 1, "content-type": "text/plain; charset=utf-8"}
    assert [one.properties.get("content-type") for one in found[1:3]] == ["application/json", None]
    assert [found[index].deliver_at for index in (1, 3)] == [at, at]
    hours = [(found[index].deliver_at - before) // timedelta(minutes=59) for index in (0, 2, 4)]
    assert hours == [2, 2, 1]


def test_a_portion_with_a_wrong_line_is_not_sent(
    run: Run, broker: Broker, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_file, "PORTION_LINES", 2)
    messages = [{"body": str(number), "key": str(number)} for number in range(1, 6)]
    send = f"{SEND} {file} --idempotency-key monday"

    file.write_text(lines(*messages[:3], {**messages[3], "delay": "9999d"}, messages[4]))
    refused = refusal(run(send))
    assert refused.startswith("Error: line 4: ")
    assert refused.endswith("; the lines up to 2 are sent, in portions of 2 lines\n")
    assert [bool(broker.find_key("t", str(number))) for number in range(1, 6)] == [True] * 2 + [False] * 3

    file.write_text(lines(*messages))
    assert run(send).stdout == "3 messages sent in 3 transactions; 2 messages sent before.\n"
    assert run(send).stdout == "0 messages sent in 3 transactions; 5 messages sent before.\n"
    assert [len(broker.find_key("t", str(number))) for number in range(1, 6)] == [1] * 5


def test_line_is_known_again_where_others_were_added(run: Run, broker: Broker, file: Path) -> None:
    send = f"{SEND} {file} --idempotency-key monday"
    twice = [{"body": "same"}, {"body": "other"}, {"body": "same"}]
    file.write_text(lines(*twice))
    assert run(send).stdout == "3 messages sent in 1 transaction.\n"
    file.write_text(lines({"body": "new"}, *twice, {"body": "same"}).strip())
    assert run(send).stdout == "2 messages sent in 1 transaction; 3 messages sent before.\n"
    assert run(f"{SEND} {file}").stdout == "5 messages sent in 1 transaction.\n"


def test_wrong_line_is_named_and_nothing_of_its_portion_sent(run: Run, broker: Broker, file: Path) -> None:
    for line, words in (
        ("{", "line 2: this is not JSON"),
        ("[]", 'line 2: this is not a JSON object with "body"'),
        ('{"key": "k"}', 'line 2: this is not a JSON object with "body"'),
        ('{"body": "x", "delay": "soon"}', "line 2: 'soon' is not a duration"),
        ('{"body": "x", "delay": true}', "line 2: delay is neither a duration"),
        ('{"body": "x", "delay": 1e999}', "line 2: "),
        ('{"body": "x", "deliver_at": "2030-01-01T00:00:00"}', "has no time zone"),
        ('{"body": {"base64": "?"}}', "line 2: "),
        ('{"body": "x", "color": "red"}', "line 2: a message has the names"),
        ('{"body": "x", "delay": "1h", "deliver_at": 1}', "line 2: "),
        ('{"body": "x", "delay": [1]}', "line 2: "),
        ('{"body": "x", "key": 7}', "line 2: "),
    ):
        file.write_text('{"body": "x", "key": "first"}\n' + line + "\n")
        refused = refusal(run(f"{SEND} {file}"))
        assert words in refused, line
        assert "no line before is sent" in refused
    assert broker.find_key("t", "first") == []
    assert file.name in refusal(run(f"{SEND} {file}.gone"))
    file.write_text("")
    assert run(f"{SEND} {file}").stdout == "0 messages sent in 0 transactions.\n"


def test_standard_input_is_sent_from_its_position(dsn: str, broker: Broker, file: Path) -> None:
    file.write_text("read before\n" + lines({"body": "a"}, {"body": "b"}))
    with file.open("rb", buffering=0) as given:
        given.readline()
        done = subprocess.run(
            [sys.executable, "-m", "duewheel.cli", *SEND.split(), "-", "--dsn", dsn],
            stdin=given,
            capture_output=True,
            text=True,
            check=True,
        )
    assert done.stdout == "2 messages sent in 1 transaction.\n"


def test_an_interrupted_file_reports_the_sent_lines(dsn: str, broker: Broker, file: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "duewheel.cli", *SEND.split(), "-", "--dsn", dsn],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A build may have been started with Ctrl-C switched off.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as sending:
        assert sending.stdin is not None
        assert sending.stderr is not None
        sending.stdin.write(lines({"body": "x"}) * (message_file.PORTION_LINES + 1))
        sending.stdin.flush()
        until(lambda: broker.stats().topics[0].waiting, "the first portion to be there")
        sending.send_signal(signal.SIGINT)
        told = sending.stderr.read()
        assert sending.wait() == 1
    assert re.match(
        r"interrupted; (the lines up to 1000 are|no line before is) sent, and perhaps", told.strip()
    )
