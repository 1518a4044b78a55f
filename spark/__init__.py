"""Delay messages in PySpark, read in Arrow: a look, a batch that is consumed, a stream.

``register(spark)`` makes ``spark.read.format("duewheel")`` known; :func:`consume` leases a batch. Names are
imported on first use, so that importing this package costs nothing without Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from duewheel.store.lazy_names import lazy_names

if TYPE_CHECKING:
    from duewheel.spark.batch import Batch as Batch
    from duewheel.spark.consuming import consume as consume
    from duewheel.spark.lease_states import BatchOutcome as BatchOutcome
    from duewheel.spark.partition_work import PartitionsFailed as PartitionsFailed
    from duewheel.spark.rejecting import reject as reject
    from duewheel.spark.runtimes import JavaNotFound as JavaNotFound
    from duewheel.spark.session import register as register
    from duewheel.spark.session import spark_session as spark_session

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "duewheel.spark.batch": "Batch",
        "duewheel.spark.consuming": "consume",
        "duewheel.spark.lease_states": "BatchOutcome",
        "duewheel.spark.partition_work": "PartitionsFailed",
        "duewheel.spark.rejecting": "reject",
        "duewheel.spark.runtimes": "JavaNotFound",
        "duewheel.spark.session": "register spark_session",
    },
)
