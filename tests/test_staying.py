"""The program of docs/how-to/consume.md that stays: it handles messages until it is told to end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

from tests.acting import state
from tests.pages import examples

from duewheel.store import Broker

PAGE = (Path(__file__).parents[1] / "docs" / "how-to" / "consume.md").read_text(encoding="utf-8")


def test_d14_the_staying_program_handles_messages_until_a_signal(broker: Broker, tmp_path: Path) -> None:
    (program,) = examples(PAGE, "py")
    file = tmp_path / "staying.py"
    file.write_text(program)
    broker.create_topic("order-timeout")
    with subprocess.Popen(
        [sys.executable, str(file)],
        env={**os.environ, "DUEWHEEL_DSN": broker.dsn},
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout is not None
        try:
            for number in (4711, 4712):
                sent = broker.send("order-timeout", b"", delay=timedelta(milliseconds=50), key=f"{number}")
                assert running.stdout.readline() == f"{number}\n"
            running.send_signal(signal.SIGTERM)
            assert running.wait() == 0
        finally:
            running.kill()
    assert state(broker, sent.message_id, "staying-program") == "Acked"
