"""The reference page lists every parameter with its default."""

from __future__ import annotations

import inspect
import re
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from duewheel.hooks.broker import LIBPQ_EXTRAS
from duewheel.store.database.connections import NETWORK_DEFAULTS

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "airflow.md").read_text()
SECTIONS = {
    path: {
        name: default
        for names, default in re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| (.+?) \|", text, re.MULTILINE)
        for name in re.findall(r"\w+", names)
    }
    for path, text in re.findall(r"^## [^`\n]+: `([\w.]+)`\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
}


def written(default: Any) -> str:
    """A default as the page writes it."""
    if default is inspect.Parameter.empty:
        return "required"
    if isinstance(default, timedelta):
        return f"{default.total_seconds():g} s"
    return f"`{default!r}`" if isinstance(default, str) else str(default)


def test_the_page_has_all_classes() -> None:
    assert len(SECTIONS) == 14


@pytest.mark.parametrize("path", SECTIONS)
def test_every_parameter_is_listed_with_its_default(path: str) -> None:
    module, name = path.rsplit(".", 1)
    # Airflow wraps the constructors of operators.
    constructor = inspect.unwrap(getattr(import_module(module), name).__init__)
    parameters = {
        parameter.name: written(parameter.default)
        for parameter in inspect.signature(constructor).parameters.values()
        if parameter.name != "self" and parameter.kind is not parameter.VAR_KEYWORD
    }
    assert SECTIONS[path] == parameters


def test_every_extra_is_listed() -> None:
    (table,) = re.findall(r"^\| extra \|.*?\n\n", PAGE, re.MULTILINE | re.DOTALL)
    assert set(re.findall(r"`([a-z_]+)`", re.sub(r"\| [^`].*$", "", table, flags=re.MULTILINE))) >= {
        *LIBPQ_EXTRAS,
        "listen",
    }
    assert f"seconds, {NETWORK_DEFAULTS['connect_timeout']} unless given" in table
