"""What a value is, in the words of an error."""

from __future__ import annotations


def a_kind(value: object) -> str:
    """The type of a value with its article; None is itself.

    Example:
        >>> a_kind(5), a_kind("5"), a_kind(None)
        ('an int', 'a str', 'None')
    """
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
