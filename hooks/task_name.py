"""The name of a task instance at the broker: its consumer's, and its idempotency key.

The name stays the same over all tries of the task instance. So a retried send sends once, and a try can
continue with the messages of the previous try.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

READABLE_CHARACTERS = 200
"""A longer name is replaced by a digest, which is as unique and fits the broker's limits."""


def task_address(dag_id: str, run_id: str, task_id: str, map_index: int) -> str:
    """The name of a task instance at any length; the page makes it a link.

    Args:
        dag_id, run_id, task_id: of the task instance.
        map_index: -1 if the task is not mapped.

    Example:
        >>> task_address("place_orders", "manual__1", "send", -1)
        'airflow:place_orders/manual__1/send/-1'
    """
    return f"airflow:{dag_id}/{run_id}/{task_id}/{map_index}"


def task_name(dag_id: str, run_id: str, task_id: str, map_index: int) -> str:
    """Like :func:`task_address`, or a digest of it if that is too long."""
    name = task_address(dag_id, run_id, task_id, map_index)
    if len(name) <= READABLE_CHARACTERS:
        return name
    return f"airflow:sha256:{hashlib.sha256(name.encode()).hexdigest()}"


def task_of(context: Mapping[str, Any]) -> str | None:
    """The address of the task instance of one of Airflow's contexts; None outside of a task."""
    task = context.get("ti")
    return task and task_address(task.dag_id, task.run_id, task.task_id, task.map_index)


def task_key(context: Mapping[str, Any]) -> str | None:
    """The name of the task instance of one of Airflow's contexts; None outside of a task."""
    task = context.get("ti")
    return task and task_name(task.dag_id, task.run_id, task.task_id, task.map_index)


def tries_before_clear(context: Mapping[str, Any], retries: int | None) -> int:
    """How many tries the task instance had when it was last cleared; 0 if it never was.

    It is the same in all tries after that, because Airflow raises ``max_tries`` when a task is cleared.

    Args:
        context: one of Airflow's contexts, inside a task.
        retries: the operator's.
    """
    return max(0, int(context["ti"].max_tries) - (retries or 0))
