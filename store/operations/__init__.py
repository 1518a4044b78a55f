"""The operations on topics, groups, messages and schedules, apart from consuming.

A module is imported when it is first named, as ``operations.topics``: a program pays for what it uses.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from duewheel.store.operations import dead_letters as dead_letters
    from duewheel.store.operations import groups as groups
    from duewheel.store.operations import lookups as lookups
    from duewheel.store.operations import overview as overview
    from duewheel.store.operations import recalling as recalling
    from duewheel.store.operations import schedules as schedules
    from duewheel.store.operations import sending as sending
    from duewheel.store.operations import settings as settings
    from duewheel.store.operations import topics as topics


def __getattr__(name: str) -> ModuleType:
    module = f"{__name__}.{name}"
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
