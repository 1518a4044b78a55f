"""A separate Airflow, beside a broker, that a benchmark program measures."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.bench import Bench
from duewheel.cli.demo.airflow_api import AirflowApi
from duewheel.cli.demo.airflow_standalone import USER, AirflowStandalone, Settings
from duewheel.embedded.machine import free_port
from duewheel.store import Broker

START_SECONDS = 600.0


@dataclass
class AirflowStand:
    """A complete Airflow that has read the DAGs; its database is at `settings.database_dsn`."""

    airflow: AirflowStandalone
    api: AirflowApi
    settings: Settings
    broker: Broker


@contextmanager
def airflow_stand(
    bench: Bench,
    topic: str,
    dags: Callable[[Path], str],
    names: tuple[str, ...],
    kind: type[Settings] = Settings,
) -> Iterator[AirflowStand]:
    """Start an Airflow, and stop it at the end of the block.

    Args:
        bench: its server has the databases of Airflow and of the broker.
        topic: a topic to make.
        dags: gives the text of the DAG file, for Airflow's home folder.
        names: the DAGs in it.
        kind: the settings of this Airflow.

    Raises:
        TimeoutError: it did not start.
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
        settings = kind(home, address, free_port(), home / "dags", dsn, secrets.token_hex(8))
        airflow = AirflowStandalone(settings)
        api = AirflowApi(settings.url, USER, settings.password)
        try:
            airflow.migrate(threading.Event())
            airflow.start()
            started = happens(lambda: not airflow.unhealthy(), START_SECONDS) and happens(
                lambda: all(api.knows_dag(name) for name in names), START_SECONDS
            )
            if not started:
                raise TimeoutError(f"Airflow did not start within {START_SECONDS:.0f} s")
            yield AirflowStand(airflow, api, settings, broker)
        finally:
            airflow.stop()


def happens(condition: Callable[[], bool], limit_seconds: float) -> bool:
    """Wait until a condition holds; return whether it did within the limit."""
    deadline = time.monotonic() + limit_seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        # Airflow signals no change, so this polls. The measured instants are noted where they happen.
        time.sleep(0.2)
    return True
