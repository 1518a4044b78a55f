"""A DAG whose task is killed while it holds messages."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from airflow.sdk import DAG

from duewheel.operators.consume import ConsumeMessagesOperator

if TYPE_CHECKING:
    from duewheel.store.values.messages import Message


def work_on(messages: Sequence[Message]) -> str:
    """Say what it holds, and work until told to end: both over pipes, which wait for the other side."""
    pipes = Path(os.environ["DUEWHEEL_TEST_DIRECTORY"])
    (pipes / "holds").write_text(messages[0].message_id)
    return (pipes / "end").read_text()


with DAG("killed", schedule=None) as dag:
    ConsumeMessagesOperator(
        task_id="consume",
        topic="killed",
        group="handler",
        python_callable=work_on,
        invisible=timedelta(hours=1),
        wait=timedelta(seconds=30),
    )
