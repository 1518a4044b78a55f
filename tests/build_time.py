"""Ends a run of tests when the time of the build is over, and says how many it has left out.

``.ci/run`` sets ``DUEWHEEL_TESTS_UNTIL`` for the long tests, which come last: a machine that is half as fast
still reports what its other tests have found. By hand the variable is not set, and every test runs.
"""

from __future__ import annotations

import math
import os
import time

import pytest
from xdist.workermanage import WorkerController

#: In seconds since the epoch.
UNTIL = float(os.environ.get("DUEWHEEL_TESTS_UNTIL", "inf"))

TIME_IS_OVER = "the build's time is over"

#: A test that has begun ends by the build's 90th minute.
LONGEST_SECONDS = 780

_left_out = 0


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Gives no test of a build more time than is left of it."""
    if math.isinf(UNTIL):
        return
    for item in items:
        own = item.get_closest_marker("timeout")
        if own is None or own.args[0] > LONGEST_SECONDS:
            item.add_marker(pytest.mark.timeout(LONGEST_SECONDS), append=False)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """Passes over a test that would begin too late."""
    global _left_out
    if time.time() < UNTIL:
        return None
    _left_out += 1
    return True


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hands a worker's number to the process that reports."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = _left_out


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: WorkerController) -> None:
    """Adds the number of a worker that has ended."""
    global _left_out
    _left_out += getattr(node, "workeroutput", {}).get("left_out", 0)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says so, in the last lines of the run."""
    if _left_out:
        terminalreporter.section(f"{TIME_IS_OVER}: {_left_out} tests did not run", red=True)
