"""A type checker accepts the calls that work, and refuses functions that would not get what they name."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1200)]

CONFIGURATION = f"""
[mypy]
strict = true
mypy_path = {Path(__file__).parents[2] / "src"}
follow_imports = silent
plugins = duewheel.operators.mypy_plugin
"""
PROGRAM = """
from collections.abc import Sequence
from typing import Any

from airflow.sdk import DAG, task
from duewheel.operators.due_messages import DueMessages
from duewheel.operators.handed_message import HandedMessage
from duewheel.operators.send import SendDelayMessageOperator
from duewheel.spark import Batch
from duewheel.store import Consumer, Message

due = DueMessages("orders", "g")

with DAG("typed", schedule=[due]):

    @due.task
    def whole(messages: Sequence[Message], consumer: Consumer) -> int:
        return len(messages)

    @due.task(one_by_one=True, durable_acks=False)
    def single(message: HandedMessage, region: str) -> str:
        return f"{region} {message.key}"

    @due.spark_task(durable_acks=False)
    def spark(batch: Batch) -> None: ...

    @task.due_messages(topic="orders", group="g", one_by_one=True, durable_acks=False, retries=1)
    def of_airflow(message: Message, region: str, ti: Any = None) -> str:
        return region

    @task.spark_due_messages(topic="orders", group="g")
    def spark_of_airflow(batch: Batch) -> None: ...

    @task
    def report(count: list[int], key: str) -> None: ...

    key = single("north")
    report(whole(), key) >> [spark(), spark_of_airflow()]
    SendDelayMessageOperator(task_id="send", topic="orders", body="x", delay="PT1H", key=of_airflow("south"))
    SendDelayMessageOperator(task_id="again", topic="orders", body="x", delay="PT1H", resend="on_clear")

    SendDelayMessageOperator(task_id="no", topic="orders", body="x", delay="PT1H", resend="always")  # refused
    single()  # refused: it lacks the region
    whole("north")  # refused: it takes nothing
    of_airflow()  # refused: it lacks the region

    @due.task  # refused: it gets a batch
    def not_a_message(message: Message) -> None: ...

    @due.task(one_by_one=True)  # refused: it gets a message
    def not_a_batch(messages: Sequence[Message]) -> None: ...
"""


def test_calls_are_typed_without_what_the_operator_gives(tmp_path: Path) -> None:
    (tmp_path / "mypy.ini").write_text(CONFIGURATION)
    (tmp_path / "typed.py").write_text(PROGRAM)
    arguments = ["--config-file", "mypy.ini", "--cache-dir", "cache", "typed.py"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert not done.stderr
    found = {int(line) for line in re.findall(r"^typed\.py:(\d+): error:", done.stdout, re.MULTILINE)}
    refused = {number for number, line in enumerate(PROGRAM.splitlines(), 1) if "# refused" in line}
    assert found == refused, done.stdout
