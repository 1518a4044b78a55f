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
    from duewheel.store.operations import recalling as recalling
    from duewheel.store.operations import schedules as schedules
    from duewheel.store.operations import sending as sending
    from duewheel.store.operations import settings as settings
    from duewheel.store.operations import stats as stats
    from duewheel.store.operations import topics as topics

_MODULES = frozenset(
    {
        "dead_letters",
        "groups",
        "lookups",
        "recalling",
        "schedules",
        "sending",
        "settings",
        "stats",
        "topics",
    }
)


def __getattr__(name: str) -> ModuleType:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")
