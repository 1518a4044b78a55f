"""The SQL statements of Spark's side, from one file, which may lie in a zip."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources


def statement(name: str) -> str:
    """The statement of this name in ``statements.sql``, with its comment.

    Example:
        >>> "open_messages" in statement("plan_leases")
        True
    """
    return _statements()[name]


@cache
def _statements() -> dict[str, str]:
    text = resources.files("duewheel.spark").joinpath("statements.sql").read_text(encoding="utf-8")
    _, *parts = re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))
