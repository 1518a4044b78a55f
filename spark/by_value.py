"""A function as bytes that an executor can load, also where its module cannot be imported.

Pickle names a function of a module and leaves it to the other side to import it. Airflow loads a DAG file
under its own name, and a program's own modules may be where no executor looks. Functions of such
modules travel with their code.
"""

from __future__ import annotations

import importlib.machinery
import sys
from typing import TYPE_CHECKING

from duewheel.spark.undocumented import cloudpickle

if TYPE_CHECKING:
    from collections.abc import Callable


def dumped(function: Callable[..., object]) -> bytes:
    """Pickle a function for executors: by value if its module is found on no path.

    Example:
        >>> import pickle
        >>> pickle.loads(dumped(len))("four")
        4
    """
    name = getattr(function, "__module__", None)
    module = sys.modules.get(name) if isinstance(name, str) else None
    if module is None or name == "__main__" or _is_importable(module.__name__):
        return bytes(cloudpickle.dumps(function))
    cloudpickle.register_pickle_by_value(module)
    try:
        return bytes(cloudpickle.dumps(function))
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def _is_importable(name: str) -> bool:
    top = name.partition(".")[0]
    return top in sys.builtin_module_names or importlib.machinery.PathFinder.find_spec(top) is not None
