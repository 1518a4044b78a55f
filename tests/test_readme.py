"""The guide to the tests names files, modules, fixtures and marks that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
README = (TESTS / "README.md").read_text()


def rows(title: str) -> list[list[str]]:
    """The cells of the table whose head begins with this title."""
    table = README.split(f"| {title} |")[1].split("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def quoted(text: str) -> list[str]:
    """What stands in backticks."""
    return re.findall(r"`([^`]+)`", text)


def test_files_and_links_exist() -> None:
    named = [name for name in quoted(README) if re.fullmatch(r"[\w/]+\.py|\w+(/\w+)*/", name)]
    assert len(named) > 20
    package = "store/operations/recalling.py"
    assert (TESTS.parent / package).exists()
    for name in named:
        assert name == package or (TESTS / name.removeprefix("tests/")).exists(), name
    for link in re.findall(r"\]\(([^)]+)\)", README):
        assert (TESTS / link.partition("#")[0]).exists(), link


def test_fixtures_and_helpers_exist() -> None:
    plugin = TESTS.parent / "testing" / "plugin.py"
    conftests = "\n".join(path.read_text() for path in (*TESTS.rglob("conftest.py"), plugin))
    for names, _ in rows("fixture"):
        for name in quoted(names):
            assert name.endswith("/") or re.search(rf"^def {name}\(", conftests, re.MULTILINE), name
    for modules, has in rows("module"):
        for module in quoted(modules):
            text = (TESTS / f"{module.removeprefix('tests.')}.py").read_text()
            for name in quoted(has):
                assert re.search(rf"^(async )?(def|class) {name}\b|^{name} = ", text, re.MULTILINE), name


def test_marks_are_all_listed(pytestconfig: pytest.Config) -> None:
    marks = {re.split("[:(]", line)[0] for line in pytestconfig.getini("markers")}
    for (mark,) in (quoted(cells[0]) for cells in rows("mark")):
        assert mark in marks
