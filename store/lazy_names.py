"""Public names of a package, each imported from its module on first use (PEP 562)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def lazy_names(
    package: str, public: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """``__getattr__``, ``__dir__`` and ``__all__`` of a package.

    Args:
        package: the ``__name__`` of the package.
        public: for each module, by its full name, its public names with spaces between them.

    Example::

        __getattr__, __dir__, __all__ = lazy_names(__name__, {"duewheel.store.broker": "Broker"})
    """
    homes = {name: home for home, names in public.items() for name in names.split()}
    known = vars(sys.modules[package])

    def getattr_(name: str) -> object:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value: object = getattr(import_module(home), name)
        known[name] = value
        return value

    return getattr_, lambda: sorted({*known, *homes}), sorted(homes)
