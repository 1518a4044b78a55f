"""Errors of this package as a Spark user sees them: class and message first, without the frames of a worker.

Spark calls a data source in separate Python processes. When a call fails, its process writes the traceback,
which becomes the text of Spark's error, and ends. The setting
``spark.sql.execution.pyspark.udf.hideTraceback.enabled`` has it write class and message alone. But it would
hide where a user's own function failed, too. So a process that an error of this package ends does for itself
what the setting does for all. How it does so is not documented; a test tells when it changes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import wraps
from inspect import isfunction
from typing import Any, TypeVar

from duewheel.store.values.errors import DueWheelError

Kind = TypeVar("Kind")


def told_first(kind: type[Kind]) -> type[Kind]:
    """Has Spark show class and message of an error that a data source, reader or writer raises."""
    for name, method in list(vars(kind).items()):
        if isfunction(method) and not name.startswith("_"):
            setattr(kind, name, _told(method))
    return kind


def _told(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def made(*arguments: Any, **named: Any) -> Any:
        try:
            answer = method(*arguments, **named)
        except DueWheelError:
            _leave_frames_out()
            raise
        return _each(answer) if isinstance(answer, Iterator) else answer

    return made


def _each(batches: Iterator[Any]) -> Iterator[Any]:
    try:
        yield from batches
    except DueWheelError:
        _leave_frames_out()
        raise


def _leave_frames_out() -> None:
    # Elsewhere, as in a program that makes a reader itself, the error ends no process.
    if os.environ.get("SPARK_PYTHON_RUNTIME") == "PYTHON_WORKER":
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
