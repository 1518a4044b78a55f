"""What tasks see: the context of a try, and the outcome of messages for their group."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from airflow.sdk import Context

if TYPE_CHECKING:
    from duewheel.store import Broker


def a_try(number: int = 1, *, retries: int = 0, task_id: str = "task", **names: object) -> Context:
    """The context of one try of a task."""
    task_instance = SimpleNamespace(
        dag_id="dag",
        run_id="run",
        task_id=task_id,
        map_index=-1,
        try_number=number,
        max_tries=retries,
        xcom_push=lambda **_: None,
    )
    return cast("Context", {"ti": task_instance, **names})


def states(broker: Broker, message_id: str, group: str = "g") -> list[str]:
    """The states of a message for a group."""
    return [entry.state for entry in broker.history(message_id) if entry.consumer_group == group]
