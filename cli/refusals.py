"""The error text when the database refuses for its own reasons, such as a full disk."""

from __future__ import annotations

import psycopg2

from duewheel.store.values.errors import said

# The advice by SQLSTATE, or by its first two characters.
_ADVICE = {
    "57014": "try again, or raise statement_timeout for this login",
    "53100": "make room on the disk of the database's server, then try again",
    "53": "the database's server lacks a resource: try again when it is less busy, or give it more",
    "40": "try again",
    "55P03": "try again when the session that holds the lock has ended, or raise lock_timeout for this login",
    "42501": "let an administrator of the database grant the right",
}
_ELSE = "the log of the database's server may have details"


def explained(error: psycopg2.Error) -> str:
    """Return what happened and what to do, in one line."""
    code = error.pgcode
    if code is None:
        return (
            f"the database driver gave up ({said(error)}): check the address and the server, then try again"
        )
    what = "; ".join(filter(None, (error.diag.message_primary, error.diag.message_hint))) or said(error)
    advice = _ADVICE.get(code) or _ADVICE.get(code[:2], _ELSE)
    return one_line(f"the database refused ({what}; SQLSTATE {code}): {advice}")


def one_line(text: str) -> str:
    """Return the text with its line ends as blanks."""
    return text.replace("\n", " ")
