"""The process from which Spark forks the Python workers of a local session, with PySpark's worker loaded.

A read that ends early, as ``first()`` does, costs its worker, and the next read waits for a new one. More
than half of a new worker's time goes into importing PySpark from ``pyspark.zip``, and into reading the
directory of that file again and again. Here that is done once, before the fork.

Nothing may be loaded here that starts a thread, as PyArrow does: ``pyspark.daemon`` imports the worker after
the fork for this reason. A test looks. So two undocumented modules of PySpark are used here, and not in
:mod:`duewheel.spark.undocumented`, which loads PyArrow.
"""

from __future__ import annotations

import sys

import pyspark.worker  # noqa: F401 -- loaded for the workers that are forked
from pyspark import daemon

if __name__ == "__main__":
    # A worker that adds a path would have each of them read its file's directory again.
    sys.path_importer_cache.clear()
    daemon.manager()
