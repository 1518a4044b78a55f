"""The name of a task instance: what stays the same over all its tries.

It keeps a retried send from sending twice (X07), and lets a try go on with the messages of the one before.
"""

from __future__ import annotations

from duewheel.hooks.task_name import task_key

__all__ = ["task_key"]
