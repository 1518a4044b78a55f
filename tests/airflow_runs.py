"""Real runs of DAGs, each in a process of its own: the homes of ``duewheel.testing``, with a broker.

They live in another process because Airflow's own code warns of things that are errors in tests here.
"""

from __future__ import annotations

import os
import tempfile
from functools import cache
from pathlib import Path

from duewheel.testing import dag_runs
from duewheel.testing.connections import connection_json
from duewheel.testing.dag_runs import DagRunResult as RunResult

__all__ = ["AirflowHome", "RunResult", "connection_json"]


@cache
def _metadata() -> Path:
    """A metadata database with its tables: made once, and copied for each home."""
    return dag_runs.Airflow(Path(tempfile.mkdtemp(dir=os.environ["PYTEST_DEBUG_TEMPROOT"]))).metadata


class AirflowHome(dag_runs.AirflowHome):
    """A home for Airflow with a metadata database, whose DAGs reach the broker at ``dsn``.

    Args:
        directory: an empty directory.
        dsn: the broker's database, for the connection ``duewheel_default``.
        variables: further environment variables.
    """

    def __init__(self, directory: Path, dsn: str, **variables: str) -> None:
        super().__init__(
            directory, _metadata(), **{"AIRFLOW_CONN_DUEWHEEL_DEFAULT": connection_json(dsn), **variables}
        )
