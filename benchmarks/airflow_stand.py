"""A separate Airflow, beside a broker, that a benchmark program measures."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.bench import Bench
from duewheel.cli.demo.airflow_api import AirflowApi
from duewheel.cli.demo.airflow_standalone import AirflowStandalone, Settings
from duewheel.store import Broker


@dataclass
class AirflowStand:
    """A complete Airflow that has read the DAGs."""

    airflow: AirflowStandalone
    broker: Broker


@contextmanager
def airflow_stand(
    bench: Bench,
    topic: str,
    dags: Callable[[Path], str],
    names: tuple[str, ...],
    **variables: str,
) -> Iterator[AirflowStand]:
    """Start an Airflow, and stop it at the end of the block.

    Args:
        bench: its server has the databases of Airflow and of the broker.
        topic: a topic to make.
        dags: gives the text of the DAG file, for Airflow's home folder.
        names: the DAGs in it.
        variables: environment variables of this Airflow.

    Raises:
        AirflowFailedError: it did not start.
    """
    with (
        TemporaryDirectory(prefix="duewheel-bench-") as directory,
        bench.server.empty() as address,
        bench.server.duewheel() as dsn,
        Broker(dsn) as broker,
    ):
        home = Path(directory)
        (home / "dags").mkdir()
        (home / "dags" / "measured.py").write_text(dags(home))
        broker.create_topic(topic)
        with AirflowStandalone(Settings(home, address, home / "dags", dsn, variables=variables)) as airflow:
            airflow.bring_up(names)
            yield AirflowStand(airflow, broker)


def noted(notes: Path) -> list[dict[str, Any]]:
    """What the tasks have noted, a line of JSON each."""
    return [json.loads(line) for line in notes.read_text().splitlines()] if notes.exists() else []


def is_idle(api: AirflowApi, dag_id: str) -> bool:
    """Whether no run of a DAG works or waits."""
    states = api.run_states(dag_id, since="2000-01-01T00:00:00Z")
    return not states.get("running") and not states.get("queued")


def happens(condition: Callable[[], bool], limit_seconds: float) -> bool:
    """Wait until a condition holds; return whether it did within the limit."""
    deadline = time.monotonic() + limit_seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        # Airflow signals no change, so this polls. The measured instants are noted where they happen.
        time.sleep(0.2)
    return True
