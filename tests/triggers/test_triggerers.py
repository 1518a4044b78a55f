"""A triggerer that starts takes watchers over: at once from one that was stopped, later from a killed one."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from tests.acting import send
from tests.airflow_runs import AirflowHome
from tests.waiting import until

from duewheel.cli.demo.processes import end_sessions
from duewheel.store import Broker

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.timeout(1200)]

WATCHING = """
from airflow.sdk import DAG, Asset, AssetWatcher
from duewheel.triggers.timing_wheel import TimingWheelTrigger

trigger = TimingWheelTrigger(topic="t", group="g", ring_again=0.5)
due = Asset("due", watchers=[AssetWatcher(name="wheel", trigger=trigger)])
dag = DAG("watching", schedule=[due], is_paused_upon_creation=False)
"""
#: No test lasts so long: a triggerer that waits for it never takes a watcher over.
FOR_EVER_SECONDS = 1_000_000


class Triggerers:
    """One triggerer after the other, on one Airflow whose only DAG watches the topic ``t``."""

    def __init__(self, home: AirflowHome, directory: Path) -> None:
        self._home = home
        self._database = directory / "airflow.db"
        self._log = directory / "triggerer.log"

    @contextmanager
    def start(self, threshold_seconds: int = FOR_EVER_SECONDS) -> Iterator[subprocess.Popen[bytes]]:
        """A triggerer that takes watchers over from one that was silent for so long."""
        threshold = {"AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": str(threshold_seconds)}
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "airflow", "triggerer", "--skip-serve-logs"],
                env=self._home.environment | threshold,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            yield process
        finally:
            end_sessions([process.pid])
            process.wait()

    def rings(self) -> int:
        """How often doorbells have started runs or would have."""
        return int(self._one("select count(*) from asset_event"))

    def triggerer(self) -> int | None:
        """The triggerer to which the watcher belongs."""
        number = self._one("select triggerer_id from trigger")
        return None if number is None else int(number)

    def _one(self, query: str) -> int | None:
        with closing(sqlite3.connect(self._database, timeout=60)) as connection:
            ((value,),) = connection.execute(query)
        return None if value is None else int(value)

    def until_ring(self, process: subprocess.Popen[bytes]) -> None:
        """Wait for the next ring, while the triggerer lives."""
        before = self.rings()

        def rang() -> bool:
            assert process.poll() is None, self._log.read_text()
            return self.rings() > before

        until(rang, "a ring", pause_seconds=0.1)


@pytest.fixture
def triggerers(tmp_path: Path, broker: Broker) -> Triggerers:
    """The broker has a message that is ready and that nobody takes."""
    broker.create_topic("t")
    send(broker, "ready")
    home = AirflowHome(tmp_path, broker.dsn)
    (home.dags / "watching.py").write_text(WATCHING)
    subprocess.run(
        [sys.executable, "-m", "airflow", "dags", "reserialize"],
        env=home.environment,
        check=True,
        capture_output=True,
    )
    return Triggerers(home, tmp_path)


def test_a_triggerer_takes_over_at_once_from_a_stopped_one_and_in_time_from_a_killed_one(
    triggerers: Triggerers,
) -> None:
    with triggerers.start() as first:
        triggerers.until_ring(first)
        first.send_signal(signal.SIGTERM)
        first.wait()
    stopped = triggerers.triggerer()

    # It would wait for ever for one that counts as alive.
    with triggerers.start() as second:
        triggerers.until_ring(second)
        killed = triggerers.triggerer()
        assert killed != stopped
        # Airflow lets go of the watchers of a process that it can tell to; this one is told nothing.
        end_sessions([second.pid])

    with triggerers.start(threshold_seconds=1) as third:
        triggerers.until_ring(third)
        assert triggerers.triggerer() not in (stopped, killed)
