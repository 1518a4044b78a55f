"""Faults that tests of their own play, with Airflow, Spark, a browser, or a clock that stands still."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Collection, Mapping
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

    def holds(self, passed: Mapping[str, bool]) -> bool:
        """Whether its tests passed.

        Args:
            passed: of each test, as :func:`run` returns it.
        """

        def results(test: str) -> list[bool]:
            file, _, name = test.partition("::")
            module = f"tests.{file.removesuffix('.py').replace('/', '.')}::"
            return [
                held
                for one, held in passed.items()
                if one.startswith(module) and (not name or one.removeprefix(module).partition("[")[0] == name)
            ]

        return all(found and all(found) for found in map(results, self.tests))


def places(chosen: Collection[Proven]) -> list[str]:
    """The tests of faults, those of a file in a row: what it starts ends where another one begins."""
    return sorted({f"tests/{test}" for one in chosen for test in one.tests})


def run(chosen: Collection[Proven]) -> dict[str, bool]:
    """Run the tests of faults, each once, and return which passed: those of a file share what it starts."""
    with tempfile.TemporaryDirectory(prefix="duewheel-chaos-") as folder:
        report = Path(folder) / "report.xml"
        options = ["-m", "", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
        subprocess.run([sys.executable, "-m", "pytest", *options, *places(chosen)], cwd=ROOT, check=False)
        cases = ET.parse(report).getroot().iter("testcase")
        return {
            f"{case.get('classname')}::{case.get('name')}": not any(
                case.find(what) is not None for what in ("failure", "error", "skipped")
            )
            for case in cases
        }


_TROUBLED = "triggers/test_troubled_triggerers.py::test_x14_"
_LIVE = "operators/test_live.py::test_"
PROVEN: dict[str, Proven] = {
    name: Proven(name, title, tests)
    for name, title, *tests in (
        (
            *("triggerers-killed", "SIGKILL of Airflow's triggerers amid releases"),
            f"{_LIVE}x14_killed_triggerers_lose_and_double_nothing",
        ),
        (
            *("triggerer-stopped", "A triggerer is stopped, and continues next to its successor"),
            f"{_LIVE}x14_a_triggerer_that_was_stopped_doubles_nothing",
        ),
        (
            *("triggerer-taken-over", "Another triggerer takes over from one that was stopped or killed"),
            "triggers/test_triggerers.py",
        ),
        (
            *("dag-paused", "The DAG is paused while a message comes due, and unpaused"),
            f"{_LIVE}an_event_during_a_pause_starts_a_run_afterwards",
        ),
        (
            *("event-loop", "A thousand topics are ready at once, beside other triggers of the event loop"),
            "triggers/test_event_loop.py",
        ),
        (
            *("triggerer-full", "The triggerer's capacity is full, and the watcher is not scheduled"),
            f"{_TROUBLED}a_watcher_without_a_triggerer_only_delays_messages",
        ),
        (
            *("watcher-deleted", "The trigger's row is deleted while it runs"),
            f"{_TROUBLED}a_deleted_watcher_returns_with_the_next_parse",
        ),
        (
            *("dag-parsed-anew", "The DAG is parsed again, paused and unpaused"),
            f"{_TROUBLED}a_dag_parsed_again_has_one_watcher",
        ),
        (
            *("event-loop-blocked", "Another trigger blocks the event loop for 10 s"),
            f"{_TROUBLED}a_trigger_that_blocks_the_loop_only_delays",
        ),
        (
            *("event-queue-full", "Airflow's queue of events overflows"),
            "triggers/test_timing_wheel.py::test_x14_a_watcher_rings_after_its_queue_overflowed",
        ),
        (
            *("between-event-and-run", "A triggerer is killed between its event and the DAG run"),
            f"{_LIVE}x14_a_triggerer_killed_after_its_event_loses_nothing",
        ),
        (
            *("airflow-database", "Airflow's own database is restarted amid releases"),
            f"{_LIVE}x14_a_restart_of_airflows_database_loses_nothing",
        ),
        (
            *("broker-under-a-task", "The broker is restarted under a running task"),
            f"{_LIVE}x14_a_broker_restart_keeps_lease_and_wheel",
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
        (
            *(
                "stopped-in-airflow",
                "SIGTERM to a triggerer, the demo, a program that stays",
            ),
            "triggers/test_triggerers.py",
            "demo/test_demo.py::test_interrupted_demo_leaves_nothing_behind",
            "test_staying.py",
        ),
        ("daylight-saving", "Schedules over changes of daylight saving", "store/test_cron.py"),
        (
            *("versions-beside", "Old programs beside new ones, both ways round, and upgrades under traffic"),
            "store/test_upgrading.py",
        ),
        ("standby-lags", "A standby that lags, and a synchronous one that is away", "proof/test_standby.py"),
        (
            *("spark-killed", "Spark's driver and streams killed amid batches and writes"),
            "spark/test_cluster_kills.py::test_x16_queries_lose_nothing_while_the_cluster_is_killed",
            "spark/test_writing.py::test_x16_killed_driver_sends_all_or_nothing",
            "spark/test_operator.py::test_x11_killed_driver_leaves_no_process_and_no_lease",
            "spark/test_foreach_partition.py::test_x16_only_unfinished_parts_of_a_killed_driver_return",
        ),
        (
            *("spark-lease-ended", "The lease ends while a Spark job runs; a late ack"),
            "spark/test_operator.py::test_x10_jobs_end_when_the_lease_is_lost",
            "spark/test_batch.py::test_x10_ack_after_the_lease_ended_is_refused",
        ),
        (
            *("spark-executors", "Spark's executors die, run a part twice at once, and go on late"),
            "spark/test_standalone_cluster.py::test_x16_cluster_works_and_sends_once",
            "spark/test_foreach_partition.py::test_x16_task_that_died_after_its_commit_is_not_done_twice",
            "spark/test_foreach_partition.py::test_x16_task_that_died_before_its_commit_is_done_again",
            "spark/test_foreach_partition.py::test_x16_two_runs_of_the_whole_work_at_once_do_it_once",
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
