"""The page's script, which is built from ``plugin/ui`` into ``plugin/bundle``.

A checkout may have no built script. A script of a few lines then takes its place and shows how to build it.
"""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from pathlib import Path

_FOLDER = Path(__file__).parent
_BUILT = _FOLDER / "bundle" / "main.js"
_NOT_BUILT = _FOLDER / "static" / "not_built.js"
_ICONS = {"icon.svg": _FOLDER / "static" / "icon.svg", "icon-dark.svg": _FOLDER / "static" / "icon-dark.svg"}


def script() -> Path:
    """The script that the page runs."""
    return _BUILT if _BUILT.is_file() else _NOT_BUILT


def icon(name: str) -> Path | None:
    """An icon of the page by its name, or None if it does not exist."""
    return _ICONS.get(name)


@cache
def bundle_version() -> str:
    """Digits that change whenever the script does, for its address."""
    return sha256(script().read_bytes()).hexdigest()[:12]
