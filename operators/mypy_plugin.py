"""A plugin of mypy that gives ``@task.due_messages`` and ``@task.spark_due_messages`` their types.

Airflow's types describe each decorator of a provider as ``@task``, so mypy asks for the messages in the call.
Enable the plugin in ``pyproject.toml``::

    [tool.mypy]
    plugins = ["duewheel.operators.mypy_plugin"]
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, cast

from mypy.nodes import ImportFrom
from mypy.plugin import Plugin

if TYPE_CHECKING:
    from collections.abc import Callable

    from mypy.checker import TypeChecker
    from mypy.nodes import MypyFile
    from mypy.plugin import AttributeContext
    from mypy.types import Type

MODULE = "duewheel.operators.decorators"

DECORATORS = {
    f"airflow.sdk.definitions.decorators.TaskDecoratorCollection.{name}": f"{name}_task"
    for name in ("due_messages", "spark_due_messages")
}
"""The functions that Airflow calls, by the names that it gives them."""


class DueMessagesPlugin(Plugin):
    """Types the decorators as the functions that they are."""

    def get_additional_deps(self, file: MypyFile) -> list[tuple[int, str, int]]:
        """Have mypy read the functions with each file that imports ``task``."""
        imported = {name for each in file.imports if isinstance(each, ImportFrom) for name, _ in each.names}
        return [(10, MODULE, -1)] if "task" in imported and file.fullname != MODULE else []

    def get_attribute_hook(self, fullname: str) -> Callable[[AttributeContext], Type] | None:
        """The type of ``task.due_messages``, which Airflow's types do not declare."""
        function = DECORATORS.get(fullname)
        return None if function is None else partial(_type_of, function)


def _type_of(function: str, context: AttributeContext) -> Type:
    module = cast("TypeChecker", context.api).modules.get(MODULE)
    found = None if module is None else module.names[function].type
    return found or context.default_attr_type


def plugin(version: str) -> type[Plugin]:  # noqa: ARG001 -- the signature that mypy calls
    """Return the plugin; mypy calls this."""
    return DueMessagesPlugin
