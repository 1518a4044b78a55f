"""The name of a task instance: what stays the same over all its tries.

It keeps a retried send from sending twice (X07), and lets a try go on with the messages of the one before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from duewheel.hooks.task_name import task_name


def task_key(context: Mapping[str, Any]) -> str | None:
    """The name that all tries of one task instance share; None outside of a task.

    Example: ``airflow:place_orders/manual__2026-01-01T00:00:00+00:00/send/-1``; a digest when that is too
    long.
    """
    task_instance = context.get("ti")
    if task_instance is None:
        return None
    return task_name(
        task_instance.dag_id, task_instance.run_id, task_instance.task_id, task_instance.map_index
    )
