"""Runs the tests as the targets of make do: ``python -m tests SET [ARGUMENTS OF PYTEST]``.

A set is one run of pytest, whose tests are dealt to all processors from one queue (``work_queue.py``). The
set ``flaky`` is rounds in random order, on one processor that has other work, too.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import NamedTuple

QUICK = "not slow and not airflow and not spark and not long"

ON_ALL_PROCESSORS = ("-n", "auto", "-p", "tests.work_queue", "-p", "tests.reporting")
ON_THE_STORE = (*ON_ALL_PROCESSORS, "tests/store")
#: The tests that make sense where transactions of one program have several sessions: they listen to nothing.
POOLED = (
    *("answers", "bulk_recall", "connections", "dead_letters", "history", "keys", "lookups", "moved_ids"),
    *("push_consumer", "recalling", "retention", "retry_policy", "rewind", "schedules", "sending", "slots"),
    "ticking",
)


class Run(NamedTuple):
    """One run of pytest."""

    told: str
    marks: str
    options: Sequence[str]
    environment: Mapping[str, str] = MappingProxyType({})


STORE = "About 2 minutes on two quiet cores: the store's quick tests, on DUEWHEEL_TEST_POSTGRES"
RUNS = {
    "quick": Run(
        "About 2 minutes on two quiet cores. Left to `make test`: Airflow, Spark, servers that are killed.",
        QUICK,
        ON_ALL_PROCESSORS,
    ),
    "test": Run(
        "About 13 minutes on two quiet cores. Left to `make test-long`: all faults, soaks, standbys, an"
        " Airflow whose parts are killed, and the models' and races' longer plays.",
        "not long",
        ON_ALL_PROCESSORS,
    ),
    "store": Run(f"{STORE}.", QUICK, ON_THE_STORE),
    "owner": Run(
        f"{STORE}, for an owner without superuser.", QUICK, ON_THE_STORE, {"DUEWHEEL_TEST_LOGIN": "owner"}
    ),
    "roles": Run(
        f"{STORE}, for a login with the four roles.", QUICK, ON_THE_STORE, {"DUEWHEEL_TEST_LOGIN": "roles"}
    ),
    "pooled": Run(
        f"{STORE}, through PgBouncer.",
        QUICK,
        (*ON_ALL_PROCESSORS, *(f"tests/store/test_{name}.py" for name in POOLED)),
        {"DUEWHEEL_TEST_POOLER": "/usr/sbin/pgbouncer"},
    ),
    "python": Run(
        "The quick tests of the store, the hooks and the operators.",
        QUICK,
        (*ON_THE_STORE, "tests/hooks", "tests/operators"),
    ),
    "long": Run(
        "About 20 minutes on two quiet cores: what `make test` leaves out.",
        "long or tenfold",
        (
            *ON_ALL_PROCESSORS,
            "--timeout",
            "1800",
            "-o",
            "faulthandler_timeout=2000",
            "-p",
            "tests.build_time",
        ),
        {"DUEWHEEL_MODEL_TIMES": "10", "DUEWHEEL_RACES": "10000", "DUEWHEEL_SOAK_SECONDS": "100"},
    ),
}

ROUNDS = 10
FLAKY = f"About an hour: the quick tests {ROUNDS} times in random order, on one processor with a load."


def pytest_command(marks: str, *options: str) -> list[str]:
    """The command of a run."""
    return [sys.executable, "-m", "pytest", "-m", marks, *options]


def flaky(arguments: Sequence[str]) -> int:
    """Play the quick tests again and again, print which of them failed how often, and return the status."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    failures: Counter[str] = Counter()
    load = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        with TemporaryDirectory() as folder:
            for number in range(1, ROUNDS + 1):
                failed = Path(folder, str(number))
                options = ("-q", "-p", "tests.reporting", "--random-order", f"--random-order-seed={number}")
                subprocess.run(
                    pytest_command(QUICK, *options, *arguments),
                    env={**os.environ, "DUEWHEEL_FAILED_TESTS": str(failed)},
                    check=False,
                )
                failures.update(failed.read_text().splitlines())
                print(f"round {number} of {ROUNDS}: {failures.total()} failed so far", flush=True)
    finally:
        load.kill()
        load.wait()
    for failure, times in failures.most_common():
        print(f"{times} of {ROUNDS}: {failure}")
    return int(bool(failures))


def main(name: str, arguments: Sequence[str]) -> int:
    """Run a target's tests, and return the exit status."""
    if name == "flaky":
        print(FLAKY, flush=True)
        return flaky(arguments)
    run = RUNS[name]
    print(run.told, flush=True)
    command = pytest_command(run.marks, *run.options, *arguments)
    environment = {**run.environment, **os.environ}
    # Without their bytecode each process takes six seconds to rewrite the assertions of all tests.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
