"""The public names of the Python packages, and the pages of the site that show their docstrings.

Public are the names in ``__all__`` of duewheel.store, duewheel.spark and duewheel.testing, and the classes
that the provider names to Airflow.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import duewheel.spark
import duewheel.store
import duewheel.testing
from duewheel.plugin.provider_info import get_provider_info

TITLES = {
    "store": "duewheel.store",
    "errors": "Errors of duewheel.store",
    "operators": "duewheel.operators",
    "sensors": "duewheel.sensors",
    "triggers": "duewheel.triggers",
    "hooks": "duewheel.hooks",
    "spark": "duewheel.spark",
    "testing": "duewheel.testing",
}
#: The page that explains, with examples, how the names belong together.
EXPLAINED = {"store": "python", "errors": "errors", "spark": "spark", "testing": "../how-to/test-your-dag"}
# The methods of a broker are in its parts, and the answers of a batch in the class that holds its leases.
_INHERITED = """
    options:
      inherited_members: true
      members_order: alphabetical"""
_OPTIONS = dict.fromkeys(("duewheel.store.Broker", "duewheel.spark.Batch"), _INHERITED)
_INTRODUCTION = (
    "Made from the docstrings. [An overview](../{overview}.md) says how the names belong together."
)


@cache
def public_names() -> dict[str, list[str]]:
    """The dotted public names, in order, by the page that shows them."""
    info = get_provider_info()
    errors = [name for name in duewheel.store.__all__ if issubclass(_store_class(name), Exception)]
    values = sorted(set(duewheel.store.__all__) - {*errors, "Broker", "Consumer"})
    return {
        "store": [f"duewheel.store.{name}" for name in ["Broker", "Consumer", *values]],
        "errors": [f"duewheel.store.{name}" for name in errors],
        "operators": [
            *_classes(info["operators"]),
            "duewheel.operators.consume.MessagesFailed",
            "duewheel.operators.handed_message.HandedMessage",
            *info["notifications"],
            *info["extra-links"],
        ],
        "sensors": list(_classes(info["sensors"])),
        "triggers": [*_classes(info["triggers"]), *info["queues"]],
        "hooks": list(_classes(info["hooks"])),
        "spark": [f"duewheel.spark.{name}" for name in duewheel.spark.__all__],
        "testing": [f"duewheel.testing.{name}" for name in duewheel.testing.__all__],
    }


def python_pages() -> dict[str, str]:
    """The Markdown of each page, by its place below docs/."""
    return {
        f"reference/api/{page}.md": "\n\n".join(
            [
                f"# {TITLES[page]}",
                _INTRODUCTION.format(overview=EXPLAINED.get(page, "airflow")),
                *(f"::: {name}{_OPTIONS.get(name, '')}" for name in names),
            ]
        )
        for page, names in public_names().items()
    }


def _store_class(name: str) -> type:
    kind = getattr(duewheel.store, name)
    assert isinstance(kind, type), name
    return kind


def _classes(integrations: list[dict[str, Any]]) -> Iterator[str]:
    """The public classes of the modules that the provider names, without their inner values.

    The modules are read and not imported: the site is built without starting Airflow.
    """
    for module in (module for entry in integrations for module in entry["python-modules"]):
        spec = find_spec(module)
        assert spec is not None, module
        assert spec.origin is not None, module
        for statement in ast.parse(Path(spec.origin).read_text()).body:
            if isinstance(statement, ast.ClassDef) and statement.bases and not statement.name.startswith("_"):
                yield f"{module}.{statement.name}"
