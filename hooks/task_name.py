"""The name of a task instance at the broker: its consumer's, and its idempotency key.

The name stays the same over all tries of the task instance. So a retried send sends once, and a try can go on
with the messages of the previous one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

READABLE_CHARACTERS = 200
"""A longer name is replaced by a digest, which is as unique and fits the broker's limits."""


def task_name(dag_id: str, run_id: str, task_id: str, map_index: int) -> str:
    """The name that all tries of one task instance share.

    Args:
        dag_id, run_id, task_id: those of the task instance.
        map_index: -1 where the task is not mapped.

    Example:
        >>> task_name("place_orders", "manual__1", "send", -1)
        'airflow:place_orders/manual__1/send/-1'
    """
    name = task_address(dag_id, run_id, task_id, map_index)
    if len(name) <= READABLE_CHARACTERS:
        return name
    return f"airflow:sha256:{hashlib.sha256(name.encode()).hexdigest()}"


def task_address(dag_id: str, run_id: str, task_id: str, map_index: int) -> str:
    """The same name at any length: what the page makes a link of.

    Args:
        dag_id, run_id, task_id: those of the task instance.
        map_index: -1 where the task is not mapped.

    Example:
        >>> task_address("place_orders", "manual__1", "send", -1)
        'airflow:place_orders/manual__1/send/-1'
    """
    return f"airflow:{dag_id}/{run_id}/{task_id}/{map_index}"


def task_key(context: Mapping[str, Any]) -> str | None:
    """The name that all tries of one task instance share; None outside of a task.

    Example: ``airflow:place_orders/manual__2026-01-01T00:00:00+00:00/send/-1``; a digest when that is too
    long.
    """
    return _of(context, task_name)


def task_of(context: Mapping[str, Any]) -> str | None:
    """The address of the task instance of one of Airflow's contexts; None outside of a task."""
    return _of(context, task_address)


def _of(context: Mapping[str, Any], named: Callable[[str, str, str, int], str]) -> str | None:
    task_instance = context.get("ti")
    if task_instance is None:
        return None
    return named(task_instance.dag_id, task_instance.run_id, task_instance.task_id, task_instance.map_index)
