"""Faults that tests of their own play, with Airflow, Spark, a browser, or a clock that stands still."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Proven:
    """A fault.

    Attributes:
        name: as ``CHAOS`` names it.
        title: as the table names it.
        tests: files below ``tests``, or tests in them.
    """

    name: str
    title: str
    tests: tuple[str, ...]

    def holds(self) -> bool:
        """Whether its tests pass; runs them."""
        places = [f"tests/{test}" for test in self.tests]
        command = [sys.executable, "-m", "pytest", "-m", "", "-q", "-p", "no:cacheprovider", *places]
        return subprocess.run(command, cwd=ROOT, check=False).returncode == 0


_LIVE = "operators/test_live.py::test_"
PROVEN: dict[str, Proven] = {
    name: Proven(name, title, tests)
    for name, title, *tests in (
        (
            *("triggerers-killed", "SIGKILL of Airflow's triggerers amid releases"),
            f"{_LIVE}x14_triggerers_killed_amid_a_thousand_releases_lose_and_double_nothing",
        ),
        (
            *("triggerer-stopped", "A triggerer stands still, and goes on beside its successor"),
            f"{_LIVE}x14_a_triggerer_that_stood_still_and_goes_on_beside_its_successor_doubles_nothing",
        ),
        (
            *("triggerer-taken-over", "Another triggerer takes over from one that was stopped or killed"),
            "triggers/test_triggerers.py",
        ),
        (
            *("dag-paused", "The DAG is paused while a message comes due, and unpaused"),
            f"{_LIVE}an_event_that_came_while_the_dag_was_paused_starts_a_run_afterwards",
        ),
        (
            *("event-loop", "A thousand topics are ready at once, beside other triggers of the event loop"),
            "triggers/test_event_loop.py",
        ),
        (
            *("airflow-database", "Airflow's own database is restarted amid releases"),
            f"{_LIVE}x14_airflows_database_restarted_amid_releases_loses_and_doubles_nothing",
        ),
        (
            *("broker-under-a-task", "The broker is restarted under a running task"),
            f"{_LIVE}x14_a_broker_that_is_restarted_under_a_task_loses_neither_its_lease_nor_the_wheel",
        ),
        (
            *("races", "Recalls, reschedules and replaces race releases and each other"),
            "proof/test_races.py",
        ),
        (
            *("upkeep-at-any-statement", "Upkeep killed at each of its statements, and the server with it"),
            "proof/test_horizon.py",
        ),
        ("down-for-long", "No wheel and no upkeep for thirty days", "proof/test_down_for_long.py"),
        ("clients-clock", "Clocks of programs that are wrong", "store/test_own_clock.py"),
        ("daylight-saving", "Schedules over changes of daylight saving", "store/test_cron.py"),
        (
            *("versions-beside", "Old programs beside new ones, both ways round, and upgrades under traffic"),
            "store/test_upgrading.py",
        ),
        ("standby-lags", "A standby that lags, and a synchronous one that is away", "proof/test_standby.py"),
        (
            *("spark-killed", "Spark's driver and streams killed amid batches and writes"),
            "spark/test_stream.py::test_x14_killed_stream_goes_on_without_loss_or_doubles",
            "spark/test_writing.py::test_x16_killed_driver_sends_all_or_nothing_and_its_next_run_the_rest",
            "spark/test_operator.py::test_x11_killed_driver_leaves_nothing_behind_and_its_messages_come_again",
            "spark/test_foreach_partition.py::test_x16_killed_driver_leaves_done_parts_done_and_the_others_come_again",
        ),
        (
            "spark-outages",
            "The broker is away under a stream, and fails over",
            "spark/test_stream_outages.py",
        ),
        (
            "page-rights",
            "Every route of the page, called anonymously and by a viewer",
            "plugin/test_rights.py",
        ),
    )
}
