"""Deals the tests to the processors, the longest files first, so that all of them are busy to the end.

A file is dealt out as one unit. Its tests run one after the other in one process, and share what the file has
started. Files that share something expensive, as the session of Spark, are one unit together. Tests that
share nothing and last long are units of their own. The length of a unit is the sum of the seconds in
``seconds.json``, which ``--write-seconds`` renews from the tests that a run has played.

The scheduler is pytest-xdist's for scopes, which takes scopes in the order of their first tests
(``xdist.scheduler.LoadScopeScheduling.schedule``). So it is enough to sort the tests.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

#: Seconds by test, of those that last longest: set-up, call and teardown.
SECONDS_FILE = Path(__file__).with_name("seconds.json")
#: From here on a test is in that file.
LONG_SECONDS = 0.5
#: What any other test is taken to last.
USUAL_SECONDS = 0.1

#: Files that begin so share a session of Spark, an API server, or the process and the ports of Airflow.
TOGETHER = {
    "tests/spark/": "spark",
    "tests/plugin/": "page",
    "tests/cli/test_doctor_in_airflow": "airflow",
    "tests/dags/": "airflow",
    "tests/demo/": "airflow",
    "tests/operators/test_in_airflow": "airflow",
    "tests/operators/test_live": "airflow",
    "tests/test_first_steps": "airflow",
    "tests/test_staying": "airflow",
    "tests/testing/": "airflow",
    "tests/triggers/": "airflow",
}
#: Files whose tests have a server each.
APART = ("tests/chaos/test_faults.py", "tests/chaos/test_mix.py")


def unit_of(nodeid: str) -> str:
    """The name of the unit to which a test belongs.

    Example:
        >>> unit_of("tests/store/test_keys.py::test_a_key")
        'tests/store/test_keys.py'
    """
    if nodeid.startswith(APART):
        return nodeid
    shared = [name for start, name in TOGETHER.items() if nodeid.startswith(start)]
    return shared[0] if shared else nodeid.split("::")[0]


class UnitScheduling(LoadScopeScheduling):
    """Hands out unit by unit."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> UnitScheduling:
    """Takes the place of the scheduler that ``--dist`` names."""
    return UnitScheduling(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the longest units first, and leaves the order within each."""
    seconds = json.loads(SECONDS_FILE.read_text())
    lengths: dict[str, float] = defaultdict(float)
    for item in items:
        lengths[unit_of(item.nodeid)] += seconds.get(item.nodeid, USUAL_SECONDS)
    items.sort(key=lambda item: (-lengths[unit_of(item.nodeid)], unit_of(item.nodeid)))
