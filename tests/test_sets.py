"""`make test` and `make test-long` together run every test, longest first, and report what became of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from itertools import product
from pathlib import Path

import pytest
from tests.__main__ import RUNS

ROOT = Path(__file__).parents[1]
MARKS = ("slow", "airflow", "spark", "long", "tenfold")

#: A run of its own: two files, of which the second is known to last longer.
FILES = {
    "test_brief.py": "def test_brief():\n    assert 1 + 1 == 3, 'three is not two'\n",
    "test_lasting.py": "def test_lasting(): pass\n",
}


def test_every_test_is_in_one_set_and_tenfold_ones_in_both() -> None:
    for values in product([False, True], repeat=len(MARKS)):
        marks = dict(zip(MARKS, values, strict=True))
        # The grammar of pytest's expressions is Python's.
        chosen = {name: eval(RUNS[name].marks, {}, marks) for name in ("quick", "test", "long")}
        assert chosen["test"] == (not marks["long"]), marks
        assert chosen["long"] == (marks["long"] or marks["tenfold"]), marks
        assert chosen["test"] or not chosen["quick"], marks


@pytest.mark.slow
def test_the_longest_runs_first_and_a_failure_names_its_reason(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    program = (
        "import sys, pytest, tests.work_queue as queue;"
        "queue.USUAL_SECONDS = 0;"
        f"queue.SECONDS_FILE = __import__('pathlib').Path({str(tmp_path / 'seconds.json')!r});"
        "sys.exit(pytest.main(sys.argv[1:], plugins=[queue]))"
    )
    (tmp_path / "seconds.json").write_text('{"test_lasting.py::test_lasting": 9}')
    failed = tmp_path / "failed"
    options = [
        "-v",
        "-p",
        "no:duewheel",
        "-p",
        "no:cacheprovider",
        "-p",
        "tests.reporting",
        "--rootdir",
        str(tmp_path),
    ]
    printed = subprocess.run(
        [sys.executable, "-c", program, *options, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "300", "DUEWHEEL_FAILED_TESTS": str(failed)},
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    assert re.findall(r"^\S*(test_\w+) (?:PASSED|FAILED)", printed, re.MULTILINE) == [
        "test_lasting",
        "test_brief",
    ]
    assert "the 2 slowest of 2 tests: 100%" in printed
    assert re.fullmatch(r"\S*::test_brief: AssertionError: three is not two\n", failed.read_text())
    assert re.search(r"^FAILED \S*::test_brief - AssertionError: three is not two$", printed, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seconds", "last"),
    [
        pytest.param(600, "1 passed in ", marks=pytest.mark.long),
        (-1, "the build's time is over: 1 tests did not run"),
    ],
)
def test_a_build_whose_time_is_over_begins_no_long_test(seconds: int, last: str) -> None:
    printed = subprocess.run(
        [sys.executable, "-m", "tests", "long", "tests/proof/test_store_model.py"],
        cwd=ROOT,
        env={**os.environ, "DUEWHEEL_MODEL_TIMES": "1", "DUEWHEEL_TESTS_UNTIL": f"{time.time() + seconds}"},
        check=False,
        capture_output=True,
        text=True,
    ).stdout
    assert last in printed
