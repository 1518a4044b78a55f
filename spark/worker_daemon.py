"""The process from which Spark forks the Python workers of a local session, with PySpark's worker loaded.

A read that ends early, as ``first()`` does, costs its worker, and the next read waits for a new one. More
than half of a new worker's time goes into importing PySpark from ``pyspark.zip``, and into reading the
directory of that file again and again. Here that is done once, before the fork.

Such a read closes the pipe on its worker, which has more to write. That is not an error, so nothing is shown.

Nothing may be loaded here that starts a thread, as PyArrow does: ``pyspark.daemon`` imports the worker after
the fork for this reason. A test looks. So two undocumented modules of PySpark are used here, and not in
:mod:`duewheel.spark.undocumented`, which loads PyArrow.
"""

from __future__ import annotations

import os
import sys
from functools import wraps
from typing import IO, Any

from pyspark import daemon, worker

_work = worker.main


@wraps(_work)
def _work_quietly(infile: IO[bytes], outfile: IO[bytes]) -> Any:
    """Do the work of a worker, and let nothing that is left to write fail where Spark has closed the pipe."""
    try:
        return _work(infile, outfile)
    finally:
        try:
            outfile.flush()
        except (BrokenPipeError, ConnectionResetError):
            # The daemon writes a traceback if it cannot flush the rest.
            with open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), outfile.fileno())


if __name__ == "__main__":
    # The daemon looks it up after the fork.
    worker.main = _work_quietly
    # A worker that adds a path would have each of them read its file's directory again.
    sys.path_importer_cache.clear()
    daemon.manager()
