"""DAGs for an Airflow with all its parts: started by the wheel, killed, and run side by side."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, Asset, AssetWatcher, task

from duewheel.triggers.timing_wheel import TimingWheelTrigger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duewheel.store.values.messages import Message

SIDE_BY_SIDE = 3

PLACE = Path(os.environ["DUEWHEEL_TEST_DIRECTORY"])


def due(topic: str, group: str, **arguments: Any) -> list[Asset]:
    """An asset whose watcher rings for the group."""
    trigger = TimingWheelTrigger(topic=topic, group=group, **arguments)
    return [Asset(f"due_{topic}_{group}", watchers=[AssetWatcher(name="wheel", trigger=trigger)])]


def note(topic: str, messages: Sequence[Message], ti: Any) -> None:
    """Write down what a run was given, all in one piece: those of several processes do not mix."""
    lines = "".join(f"{message.key} {ti.run_id}\n" for message in messages)
    file = os.open(PLACE / topic, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, lines.encode())
    finally:
        os.close(file)


with DAG("killed_live", schedule=due("killed", "g"), max_active_runs=1, is_paused_upon_creation=False):

    @task.due_messages(topic="killed", group="g", drain=False, retries=1, retry_delay=timedelta(0))
    def die_at_first(messages: Sequence[Message], ti: Any) -> list[str]:
        """Lose the worker without a word at the first try."""
        if ti.try_number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return [f"{message.key}: attempt {message.attempt}" for message in messages]

    die_at_first()

with DAG(
    "side_by_side", schedule=due("wide", "g"), max_active_runs=SIDE_BY_SIDE, is_paused_upon_creation=False
):

    @task.due_messages(topic="wide", group="g", max_messages=1, drain=False, one_by_one=True)
    def wait_for_the_others(message: Message) -> None:
        """Go on when told to, over a pipe, which waits for the other side."""
        (PLACE / f"go_{message.key}").read_text()

    wait_for_the_others()

with DAG("refused", schedule=due("wide", "everyone"), is_paused_upon_creation=False):

    @task
    def never() -> None:
        """Nobody rings: the broker refuses a broadcasting group."""

    never()

with DAG(
    "counted", schedule=due("counted", "g", ring_again=5), max_active_runs=1, is_paused_upon_creation=False
):

    @task.due_messages(
        topic="counted", group="g", max_messages=300, drain=False, invisible=timedelta(seconds=20)
    )
    def count(messages: Sequence[Message], ti: Any) -> None:
        """Take less than comes at once, so that it has to ring again."""
        note("counted", messages, ti)

    count()

with DAG("held", schedule=due("held", "g", ring_again=5), max_active_runs=1, is_paused_upon_creation=False):

    @task.due_messages(topic="held", group="g", drain=False, retries=1, retry_delay=timedelta(0))
    def hold(messages: Sequence[Message], ti: Any) -> None:
        """Hold a message for which there is a pipe until told to go on over it."""
        note("held", messages, ti)
        pipe = PLACE / f"hold_{messages[0].key}"
        if pipe.exists():
            pipe.read_text()

    hold()
