"""The reference page lists every parameter with its default."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from tests.pages import signatures

from duewheel.hooks.broker import LIBPQ_EXTRAS
from duewheel.store.database.connections import NETWORK_DEFAULTS

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "airflow.md").read_text()
SECTIONS = dict(
    re.findall(r"^## [^`\n]+: `(duewheel[\w.]+)`\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
)


def parameters(call: Callable[..., Any]) -> list[tuple[str, object, object]]:
    """The names, kinds and defaults of the arguments that a caller gives by name."""
    return [
        (parameter.name, parameter.kind, parameter.default)
        for parameter in inspect.signature(call).parameters.values()
        if parameter.name != "self" and parameter.kind is not parameter.VAR_KEYWORD
    ]


def test_the_page_has_all_classes() -> None:
    assert len(SECTIONS) == 14


@pytest.mark.parametrize("path", SECTIONS)
def test_every_parameter_is_listed_with_its_default(path: str) -> None:
    module, name = path.rsplit(".", 1)
    # Airflow wraps the constructors of operators.
    constructor = inspect.unwrap(getattr(import_module(module), name).__init__)
    (signature,) = signatures(SECTIONS[path])
    scope: dict[str, Any] = {"timedelta": timedelta}
    exec(f"def {signature}: pass", scope)
    assert parameters(scope[name]) == parameters(constructor)


def test_every_extra_is_listed() -> None:
    (table,) = re.findall(r"^\| extra \|.*?\n\n", PAGE, re.MULTILINE | re.DOTALL)
    assert set(re.findall(r"`([a-z_]+)`", re.sub(r"\| [^`].*$", "", table, flags=re.MULTILINE))) >= {
        *LIBPQ_EXTRAS,
        "listen",
    }
    assert f"seconds, {NETWORK_DEFAULTS['connect_timeout']} unless given" in table
