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
    spark_read,
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
]
