"""Statements that a connection parses and plans once instead of at every call.

The broker's hot calls are one function each, and parsing the text around the call is a large part of the cost
of a small call. A prepared statement belongs to a session, so each connection of the pool remembers which it
has. Nothing is prepared through a pooler that shares sessions.
"""

from __future__ import annotations

from typing import Final


class Prepared:
    """A statement that may be prepared.

    Attributes:
        text: the statement with ``%s`` for each parameter, to run without preparing it.
        prepare: the statement that prepares it.
        call: the statement that runs it once prepared, with the same parameters.

    Example:
        >>> Prepared("one_more", "select %s::integer + 1").call
        'execute one_more (%s)'
    """

    __slots__ = ("call", "name", "prepare", "text")

    def __init__(self, name: str, text: str) -> None:
        first, *rest = text.split("%s")
        numbered = first + "".join(f"${place}{piece}" for place, piece in enumerate(rest, 1))
        self.name: Final = name
        self.text: Final = text
        self.prepare: Final = f"prepare {name} as {numbered}"
        self.call: Final = f"execute {name} ({', '.join(['%s'] * len(rest))})"
