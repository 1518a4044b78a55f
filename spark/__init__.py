"""Delay messages in PySpark: leased batches as DataFrames, read in Arrow.

``register(spark)`` makes ``spark.read.format("duewheel")`` known; :class:`LeasedBatch` is a batch with its
answers. Names are imported on first use, so that importing this package costs nothing without Spark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from duewheel.embedded.java import JavaNotFound as JavaNotFound
    from duewheel.spark.lease_states import BatchOutcome as BatchOutcome
    from duewheel.spark.leased_batch import LeasedBatch as LeasedBatch
    from duewheel.spark.partition_work import PartitionsFailed as PartitionsFailed
    from duewheel.spark.rejecting import reject as reject
    from duewheel.spark.session import register as register
    from duewheel.spark.session import spark_session as spark_session
    from duewheel.spark.submitted import submitted_batch as submitted_batch

# Each public name and the module it lives in, below duewheel.
_HOMES = {
    "BatchOutcome": "spark.lease_states",
    "JavaNotFound": "embedded.java",
    "LeasedBatch": "spark.leased_batch",
    "PartitionsFailed": "spark.partition_work",
    "register": "spark.session",
    "reject": "spark.rejecting",
    "spark_session": "spark.session",
    "submitted_batch": "spark.submitted",
}

__all__ = [
    "BatchOutcome",
    "JavaNotFound",
    "LeasedBatch",
    "PartitionsFailed",
    "register",
    "reject",
    "spark_session",
    "submitted_batch",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"duewheel.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
