"""A separate Airflow and a broker, which a benchmark program measures, and Airflow's own ways of waiting."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.bench import Bench
from duewheel.cli.demo.airflow_api import AirflowRefusedError
from duewheel.cli.demo.airflow_standalone import AirflowStandalone, Settings
from duewheel.store import Broker

TOPIC, GROUP = "timeouts", "canceller"
#: The DAGs of Airflow's own ways, and what a row calls them.
WAYS = {"run_after": "a run with `run_after` each", "date_time_trigger": "a deferred `DateTimeTrigger` each"}
PATIENCE_SECONDS = 120.0

#: A task appends lines of JSON to this file, with `note(dag=..., ...)`.
NOTE = """
import json
import time
from airflow.sdk import DAG, Asset, AssetWatcher, task
from duewheel.triggers.timing_wheel import TimingWheelTrigger

def note(**noted):
    with open("{home}/notes", "a") as file:
        file.write(json.dumps(dict(at=time.time(), **noted)) + "\\n")
"""


@dataclass
class AirflowStand:
    """A complete Airflow that has read the DAGs."""

    airflow: AirflowStandalone
    broker: Broker

    @property
    def home(self) -> Path:
        """Airflow's home folder."""
        return self.airflow.settings.home

    def noted(self, dag_id: str) -> list[dict[str, Any]]:
        """The notes of a DAG's tasks."""
        notes = self.home / "notes"
        lines = notes.read_text().splitlines() if notes.exists() else []
        return [noted for noted in map(json.loads, lines) if noted["dag"] == dag_id]

    def wait_idle(self, dag_id: str) -> None:
        """Wait until no run of a DAG works or waits."""

        def is_idle() -> bool:
            states = self.airflow.api.run_states(dag_id, since="2000-01-01T00:00:00Z")
            return not states.get("running") and not states.get("queued")

        wait(is_idle, f"the end of the runs of {dag_id}")

    def make_runs(
        self, way: str, count: int, first_at: datetime, seconds: float, first_number: int = 0
    ) -> None:
        """Make `order-NUMBER` wait in one of Airflow's own ways, due one after the other within `seconds`."""
        made = (way, str(count), first_at.isoformat(), str(seconds), str(first_number))
        subprocess.run(
            [sys.executable, "-m", "benchmarks.airflow_rows", *made],
            env=self.airflow.settings.environment(),
            stdout=subprocess.DEVNULL,
            check=True,
        )

    def recall_run(self, way: str, run_id: str) -> bool:
        """Take a timeout back by Airflow's REST API; returns whether Airflow confirmed it.

        A run that waits for its `run_after` is deleted. One with a deferred task cannot be, so it is ended.
        """
        path = f"/api/v2/dags/{way}/dagRuns/{run_id}"
        try:
            if way == "run_after":
                self.airflow.api.call("DELETE", path)
            else:
                self.airflow.api.call("PATCH", path, {"state": "success"})
        except AirflowRefusedError:
            return False
        return True


@contextmanager
def airflow_stand(
    bench: Bench, dags: Callable[[Path], str], names: tuple[str, ...], **variables: str
) -> Iterator[AirflowStand]:
    """Start an Airflow and a broker with the topic, and stop both at the end of the block.

    Args:
        bench: its server has the databases of Airflow and of the broker.
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
        broker.create_topic(TOPIC)
        with AirflowStandalone(Settings(home, address, home / "dags", dsn, variables=variables)) as airflow:
            airflow.bring_up(names)
            yield AirflowStand(airflow, broker)


def wait(condition: Callable[[], bool], what: str, limit_seconds: float = PATIENCE_SECONDS) -> None:
    """Wait until a condition holds.

    Raises:
        TimeoutError: it did not within the limit.
    """
    deadline = time.monotonic() + limit_seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not happen within {limit_seconds:.0f} s")
        # Airflow signals no change, so this polls. The tasks note the measured instants themselves.
        time.sleep(0.2)
