"""Runs the tests as the targets of make do: ``python -m tests SET [ARGUMENTS OF PYTEST]``.

A test that needs one process and little time runs beside others, on all processors. Each of the rest keeps
several processes busy: these run one by one in two lanes of about the same length, of which one is Airflow's
and Spark's. While they run, each says which of its files are done; its failures come at its end, in one
piece.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import NamedTuple

from tests.build_time import TIME_IS_OVER

QUICK = "not slow and not airflow and not spark and not long"
PATIENTLY = ("--timeout", "1800", "-p", "tests.build_time")
#: Those of the page need a web server of Airflow's alone, and run beside it. With Spark's, both lanes are of
#: about the same length.
AIRFLOW = "((airflow and not page) or spark)"
OTHERS = f"not {AIRFLOW} and not long and not ({QUICK})"
#: Pytest's status where its arguments choose none of the tests.
NONE_CHOSEN = 5


class Part(NamedTuple):
    """One run of pytest."""

    name: str
    marks: str
    options: Sequence[str] = ()


class Run(NamedTuple):
    """The parts of a target, one after the other, and the lanes of a part beside each other."""

    told: str
    parts: Sequence[Sequence[Part]]
    environment: Mapping[str, str] = MappingProxyType({})


STORE = "About 3 minutes on two quiet cores: the store's quick tests, on DUEWHEEL_TEST_POSTGRES"
#: The tests that make sense where transactions of one program have several sessions: they listen to nothing.
POOLED = (
    *("answers", "bulk_recall", "connections", "dead_letters", "history", "keys", "lookups", "moved_ids"),
    *("push_consumer", "recalling", "retention", "retry_policy", "rewind", "schedules", "sending", "slots"),
    "ticking",
)
SIDE_BY_SIDE = ("-n", "auto", "-o", "faulthandler_timeout=400")
ON_ALL_PROCESSORS = Part("quick", QUICK, SIDE_BY_SIDE)
ON_THE_STORE = (*SIDE_BY_SIDE, "tests/store")
RUNS = {
    "quick": Run(
        "About 3 minutes on two quiet cores. Left to `make test`: Airflow, Spark, servers that are killed.",
        [[ON_ALL_PROCESSORS]],
    ),
    "test": Run(
        "About 15 minutes on two quiet cores. Left to `make test-long`: soaks, standbys, a whole Airflow"
        " whose parts are killed, and the models' and races' longer plays.",
        [
            [ON_ALL_PROCESSORS],
            [Part("airflow", f"{AIRFLOW} and not long"), Part("others", OTHERS)],
        ],
    ),
    "store": Run(f"{STORE}.", [[Part("store", QUICK, ON_THE_STORE)]]),
    "owner": Run(
        f"{STORE}, for an owner without superuser.",
        [[Part("owner", QUICK, ON_THE_STORE)]],
        {"DUEWHEEL_TEST_LOGIN": "owner"},
    ),
    "roles": Run(
        f"{STORE}, for a login with the three roles.",
        [[Part("roles", QUICK, ON_THE_STORE)]],
        {"DUEWHEEL_TEST_LOGIN": "roles"},
    ),
    "pooled": Run(
        f"{STORE}, through PgBouncer.",
        [[Part("pooled", QUICK, (*SIDE_BY_SIDE, *(f"tests/store/test_{name}.py" for name in POOLED)))]],
        {"DUEWHEEL_TEST_POOLER": "/usr/sbin/pgbouncer"},
    ),
    "python": Run(
        "The quick tests of the store, the hooks and the operators.",
        [[Part("python", QUICK, (*ON_THE_STORE, "tests/hooks", "tests/operators"))]],
    ),
    "long": Run(
        "About 45 minutes on two quiet cores: what `make test` leaves out.",
        [
            [
                Part("airflow", "(airflow or chaos) and (long or tenfold)", PATIENTLY),
                Part("others", "not (airflow or chaos) and (long or tenfold)", PATIENTLY),
            ]
        ],
        {"DUEWHEEL_MODEL_TIMES": "10", "DUEWHEEL_RACES": "10000", "DUEWHEEL_SOAK_SECONDS": "100"},
    ),
}


def follow(part: Part, arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[str, int]:
    """Run a part, tell how far it is and since when, and return what it says at its end, and its status."""
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-m", part.marks, *part.options, *arguments],
        env={**environment, **os.environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    titles, said, started = 0, [], time.monotonic()
    for line in process.stdout:
        titles += line.startswith("===")
        # The first title is that of the run itself; its progress ends with the second.
        if titles > 1:
            said.append(line)
        elif line.strip():
            minutes, seconds = divmod(int(time.monotonic() - started), 60)
            print(f"{part.name:>7} | {minutes:2}:{seconds:02} | {line}", end="", flush=True)
    return "".join(said), process.wait()


def outcome(said: str) -> str:
    """What became of a part, as it says at its end."""
    # Threads of Spark's and Airflow's may have written behind it.
    titles = [line.strip("= ") for line in said.splitlines() if line.startswith("===")] or ["no result"]
    left_out = [title for title in titles if title.startswith(TIME_IS_OVER)]
    return ", ".join([titles[-1], *left_out])


def main(name: str, arguments: Sequence[str]) -> int:
    """Run a target's tests, and return the exit status."""
    run = RUNS[name]
    print(run.told, flush=True)
    results: list[str] = []
    statuses: list[int] = []
    for lanes in run.parts:
        with ThreadPoolExecutor() as threads:
            running = [threads.submit(follow, part, arguments, run.environment) for part in lanes]
            for part, ends in zip(lanes, running, strict=True):
                said, status = ends.result()
                print(f"\n{said}", flush=True)
                results.append(f"{part.name:>7} | {outcome(said)}")
                statuses.append(status)
    print("\n".join(results))
    if set(statuses) == {NONE_CHOSEN}:
        return NONE_CHOSEN
    return int(not {0, NONE_CHOSEN}.issuperset(statuses))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
