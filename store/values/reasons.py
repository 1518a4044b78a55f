"""Why a message failed, as text to keep with its retry.

The text is from users' code: an exception, or any value that a listener returns. Characters that Postgres
cannot store are replaced; they are never a cause to refuse an answer.
"""

from __future__ import annotations

#: How much of a reason is kept, in characters.
LONGEST_REASON = 10_000


def as_reason(reason: object) -> str:
    """A reason as text that Postgres can keep: without NUL and lone surrogates, and cut to a maximum length.

    Args:
        reason: a text of any length; or an exception, of which the class and the text are kept.

    Example:
        >>> as_reason("bad byte: \\0")
        'bad byte: \ufffd'
        >>> as_reason(ValueError("no such order"))
        'ValueError: no such order'
    """
    try:
        text = str(reason)
    except BaseException as error:  # noqa: BLE001 - users' code, which may raise anything
        text = f"its text could not be had ({type(error).__name__})"
    if not isinstance(reason, str):
        text = f"{type(reason).__name__}: {text}"
    return text.replace("\0", "\ufffd").encode(errors="replace").decode()[:LONGEST_REASON]
