"""What errors suggest for names that are unknown."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable


def suggestion(unknown: Iterable[str], names: Collection[str]) -> str:
    """What to do about unknown names of options or columns, the end of an error's text.

    Args:
        unknown: the unknown names; case and underscores do not count.
        names: the names to choose from, in the order of the text.

    Returns:
        The near names, if each unknown name has one; otherwise all names.

    Example::

        suggestion(["min_partitions"], OPTIONS)  # "did you mean minPartitions?"
    """
    plain = {_plain(name): name for name in names}
    near = [get_close_matches(_plain(name), plain, n=1) for name in unknown]
    if all(near):
        return f"did you mean {', '.join(dict.fromkeys(plain[match] for (match,) in near))}?"
    return f"choose from {', '.join(names)}"


def _plain(name: str) -> str:
    return name.lower().replace("_", "")
