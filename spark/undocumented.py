"""The undocumented parts of PyArrow and PySpark that are used here; a test tells when one of them changes."""

from __future__ import annotations

from typing import Any

# ``pyarrow.compute`` makes a Python function with a docstring of each of Arrow's functions when it is
# imported, which takes a new worker process longer than reading many messages.
from pyarrow._compute import CastOptions, call_function
from pyspark import cloudpickle as _cloudpickle

__all__ = ["WORKER_DAEMON", "CastOptions", "call_function", "cloudpickle", "process_has_a_context"]

WORKER_DAEMON = "spark.python.daemon.module"
"""The setting that names the module from whose process Spark forks its Python workers."""

# It has no types.
cloudpickle: Any = _cloudpickle


def process_has_a_context() -> bool:
    """Whether this process runs Spark's driver, in whatever thread.

    ``SparkSession.getActiveSession()`` knows the session of one thread, and ``getOrCreate()`` starts a
    context.
    """
    from pyspark import SparkContext

    return SparkContext._active_spark_context is not None
