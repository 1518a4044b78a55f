"""What a run of the tests reports at its end: the slowest tests, and for a build the tests that failed."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from pathlib import Path

import pytest
from tests.work_queue import LONG_SECONDS, SECONDS_FILE

SHOWN = 20


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds ``--write-seconds``."""
    parser.addoption(
        "--write-seconds",
        action="store_true",
        help=f"note in {SECONDS_FILE.name} how long the tests of this run lasted",
    )


def lengths_of(reporter: pytest.TerminalReporter) -> dict[str, float]:
    """Seconds of each test, with set-up and teardown."""
    lengths: dict[str, float] = defaultdict(float)
    for reports in reporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                lengths[report.nodeid] += report.duration
    return lengths


def write_seconds(lengths: dict[str, float]) -> None:
    """Renews the seconds of these tests, and drops those of tests that no file has any more."""
    known = json.loads(SECONDS_FILE.read_text())
    kept = {
        test: seconds
        for test, seconds in known.items()
        if test not in lengths and Path(test.split("::")[0]).exists()
    }
    measured = {test: round(seconds, 1) for test, seconds in lengths.items() if seconds >= LONG_SECONDS}
    SECONDS_FILE.write_text(json.dumps(kept | measured, indent=1, sort_keys=True) + "\n")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Prints the slowest tests with their share of the time of all."""
    lengths = lengths_of(terminalreporter)
    if config.getoption("write_seconds"):
        write_seconds(lengths)
    total = sum(lengths.values())
    slowest = sorted(lengths.items(), key=lambda length: -length[1])[:SHOWN]
    share = sum(seconds for _, seconds in slowest) / total if total else 0
    terminalreporter.section(
        f"the {len(slowest)} slowest of {len(lengths)} tests: {share:.0%} of {total:.0f} s"
    )
    for test, seconds in slowest:
        terminalreporter.write_line(f"{seconds:7.2f} s {seconds / total:6.1%}  {test}")
    # Gathered by `.ci/run`, which prints them last.
    failed_file = os.environ.get("DUEWHEEL_FAILED_TESTS")
    if failed_file:
        failed = [*terminalreporter.stats.get("failed", []), *terminalreporter.stats.get("error", [])]
        with Path(failed_file).open("a", encoding="utf-8") as file:
            file.writelines(f"{report.nodeid}: {message_of(report)}\n" for report in failed)


def message_of(report: pytest.TestReport | pytest.CollectReport) -> str:
    """The first line of the error's message."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else report.longreprtext
    return text.strip().partition("\n")[0]
