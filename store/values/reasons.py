"""Why a message failed, as text to keep with its retry."""

from __future__ import annotations

#: How much of a reason is kept, in characters.
LONGEST_REASON = 1000


def storable(reason: str) -> str:
    """A reason as text that Postgres can keep: without NUL and lone surrogates, and not without end.

    Args:
        reason: the text, at any length.

    Example:
        >>> storable("bad byte: \\0")
        'bad byte: \ufffd'
    """
    return reason.replace("\0", "\ufffd").encode(errors="replace").decode()[:LONGEST_REASON]


def reason_of(error: BaseException) -> str:
    """The class and the text of an error, to be kept as the reason of a retry.

    Args:
        error: the exception that the work raised.

    Example:
        >>> reason_of(ValueError("no such order"))
        'ValueError: no such order'
    """
    return storable(f"{type(error).__name__}: {error}")
