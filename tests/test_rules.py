"""docs/rules.md against the tests: every rule is in a table and has a test, every id is of a rule."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
TABLE = TESTS.parent / "docs" / "rules.md"

SECTIONS = {"D": 19, "L": 6, "W": 5, "R": 15, "X": 25}
RULES = [f"{section}{number:02}" for section, last in SECTIONS.items() for number in range(1, last + 1)]
RULES += ["X26", "X27", "X28", "X29", "X30", "X31"]


def rows() -> Iterator[list[str]]:
    """The cells of every rule's row: id, rule, how, test, difference."""
    for line in TABLE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if re.fullmatch(r"[A-Z]\d\d", cells[0]):
            yield cells


@cache
def suite() -> list[tuple[str, str]]:
    """File and name of every test there is."""
    return [
        (path.relative_to(TESTS).as_posix(), name)
        for path in TESTS.rglob("test_*.py")
        for name in re.findall(r"^(?:async )?def (test_\w+)\(", path.read_text(), re.MULTILINE)
    ]


def ids_in(name: str) -> set[str]:
    """The rules whose ids a test's name begins with: ``test_d12_d13_...``."""
    found = re.match(r"test_((?:[dlwrx]\d\d_)+)", name)
    return set() if found is None else {part.upper() for part in found[1].strip("_").split("_")}


def test_every_rule_is_in_the_table_once() -> None:
    assert Counter(cells[0] for cells in rows()) == Counter(RULES)


def test_every_row_says_what_and_how() -> None:
    for cells in rows():
        assert len(cells) == 5, cells[0]
        assert all(cells[:4]), cells[0]


def test_every_rule_has_a_readable_test_that_carries_its_id() -> None:
    carried = {(file, rule) for file, name in suite() for rule in ids_in(name)}
    for rule, _, _, test, _ in rows():
        assert (f"rules/{test.strip('`')}", rule) in carried


def test_no_test_carries_the_id_of_a_rule_that_is_none() -> None:
    for file, name in suite():
        assert ids_in(name) <= set(RULES), f"{file}::{name}"


FOLDERS = [
    "benchmarks",
    "cli",
    "dags",
    "docs",
    "embedded",
    "hooks",
    "operators",
    "plugin",
    "plugin/ui/src",
    "sensors",
    "spark",
    "store",
    "triggers",
]


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_ids_stand_in_the_table_and_in_names_of_tests_only(folder: str) -> None:
    root = TABLE.parents[1] / folder
    files = root.glob("*") if folder == "plugin" else root.rglob("*")  # not all that npm has installed
    for path in files:
        if path.suffix not in {".md", ".py", ".sql", ".ts", ".tsx"}:
            continue
        found = re.findall(r"\b[DLWRX]\d\d\b", path.read_text())
        assert path == TABLE or not found, f"{path.relative_to(root.parent)}: {found}"
