"""A triggerer that starts takes watchers over: at once from one that was stopped, later from a killed one."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from tests.acting import send
from tests.airflow_runs import AirflowHome
from tests.triggers.triggerers import WATCHING, Triggerers

from duewheel.cli.demo.processes import end_sessions
from duewheel.store import Broker

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1200)]


@pytest.fixture
def triggerers(tmp_path: Path, broker: Broker) -> Triggerers:
    """The broker has a message that is ready and that nobody takes."""
    broker.create_topic("t")
    send(broker, "ready")
    found = Triggerers(AirflowHome(tmp_path, broker.dsn), tmp_path)
    found.add("watching", WATCHING)
    return found


def test_a_triggerer_takes_over_from_a_stopped_or_killed_one(
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
        # A killed triggerer gives nothing back.
        end_sessions([second.pid])

    with triggerers.start(threshold_seconds=1) as third:
        triggerers.until_ring(third)
        assert triggerers.triggerer() not in (stopped, killed)
