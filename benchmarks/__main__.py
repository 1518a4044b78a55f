"""`python -m benchmarks`: the subjects of the main table, on a tuned server."""

from __future__ import annotations

import sys

from benchmarks import latency, receiving, sending, spark_pairs, waiting
from benchmarks.program import run
from benchmarks.server import SETTINGS

SUBJECTS = [
    *sending.SUBJECTS,
    *receiving.SUBJECTS,
    *waiting.SUBJECTS,
    *latency.SUBJECTS,
    *spark_pairs.SUBJECTS,
]

if __name__ == "__main__":
    sys.exit(run("", __doc__, SUBJECTS, SETTINGS, is_long=True))
