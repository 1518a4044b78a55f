"""All subjects, in the order of the table."""

from __future__ import annotations

from benchmarks import (
    consumers,
    flood,
    latency,
    lifecycles,
    receiving,
    sending,
    snapshot,
    spark_orders,
    spark_read,
    spark_write,
    ticking,
    waiting,
)
from benchmarks.bench import Subject

SUBJECTS: list[Subject] = [
    *sending.SUBJECTS,
    *receiving.SUBJECTS,
    *consumers.SUBJECTS,
    *ticking.SUBJECTS,
    *waiting.SUBJECTS,
    *snapshot.SUBJECTS,
    *lifecycles.SUBJECTS,
    *latency.SUBJECTS,
    *flood.SUBJECTS,
    *spark_read.SUBJECTS,
    *spark_write.SUBJECTS,
    *spark_orders.SUBJECTS,
]
