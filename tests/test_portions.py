"""`make test` and `make test-long` together run every test, and each says last what became of them."""

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

MARKS = ("slow", "airflow", "spark", "long", "tenfold", "chaos", "page")


def chosen_by(run: str, marks: dict[str, bool]) -> list[str]:
    """The parts of a run that choose a test with these marks."""
    # The grammar of pytest's expressions is Python's.
    parts = [part for lanes in RUNS[run].parts for part in lanes]
    return [part.name for part in parts if eval(part.marks, {}, marks)]


def test_every_test_is_in_one_part_and_those_of_the_long_run_in_no_other() -> None:
    for values in product([False, True], repeat=len(MARKS)):
        marks = dict(zip(MARKS, values, strict=True))
        assert len(chosen_by("test", marks)) == (not marks["long"]), marks
        assert len(chosen_by("long", marks)) == (marks["long"] or marks["tenfold"]), marks
        assert set(chosen_by("quick", marks)) <= set(chosen_by("test", marks)), marks


@pytest.mark.slow
def test_the_first_line_says_what_is_left_out_and_the_last_lines_are_the_results() -> None:
    root = Path(__file__).parents[1]
    said = subprocess.run(
        [sys.executable, "-m", "tests", "test", "tests/test_languages.py", "-k", "psql or nothing"],
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    )
    first, *_, quick, airflow, others = said.stdout.splitlines()
    assert first == RUNS["test"].told
    assert quick.startswith("  quick | no tests ran")
    assert re.match(r"airflow \| \d+ deselected", airflow)
    assert re.match(r" others \| 1 passed, \d+ deselected", others)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seconds", "last"),
    [(600, "1 passed in "), (-1, "no tests ran in .*, the build's time is over: 1 tests did not run$")],
)
def test_a_build_whose_time_is_over_begins_no_long_test_and_says_how_many_are_left(
    seconds: int, last: str
) -> None:
    said = subprocess.run(
        [sys.executable, "-m", "tests", "long", "tests/proof/test_store_model.py"],
        cwd=Path(__file__).parents[1],
        env={**os.environ, "DUEWHEEL_MODEL_TIMES": "1", "DUEWHEEL_TESTS_UNTIL": f"{time.time() + seconds}"},
        check=True,
        capture_output=True,
        text=True,
    )
    *_, others = said.stdout.splitlines()
    assert re.match(rf" others \| {last}", others), others
