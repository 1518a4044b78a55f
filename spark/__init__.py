"""Delay messages in PySpark, read in Arrow: a look, a batch that is consumed, a stream.

``register(spark)`` makes ``spark.read.format("duewheel")`` known; :func:`consume` leases a batch. Names are
imported on first use, so that importing this package costs nothing without Spark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from duewheel.spark.batch import Batch as Batch
    from duewheel.spark.consuming import consume as consume
    from duewheel.spark.lease_states import BatchOutcome as BatchOutcome
    from duewheel.spark.partition_work import PartitionsFailed as PartitionsFailed
    from duewheel.spark.rejecting import reject as reject
    from duewheel.spark.runtimes import JavaNotFound as JavaNotFound
    from duewheel.spark.session import register as register
    from duewheel.spark.session import spark_session as spark_session

# The public names of each module.
_PUBLIC = {
    "batch": "Batch",
    "consuming": "consume",
    "lease_states": "BatchOutcome",
    "partition_work": "PartitionsFailed",
    "rejecting": "reject",
    "runtimes": "JavaNotFound",
    "session": "register spark_session",
}
_HOMES = {name: home for home, names in _PUBLIC.items() for name in names.split()}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
