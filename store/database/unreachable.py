"""Why a database cannot be reached, and what to do about it.

libpq reports a failure only as text. This module searches the text for causes that a user can repair. An
unknown cause gets the advice that fits most often.
"""

from __future__ import annotations

import re

_ADVICE = (
    (r"invalid (ssl\w+|target_session_attrs|channel_binding) value", r"correct \1 of the connection"),
    (r"password authentication failed", "check the user and the password"),
    (r"no password supplied", "give the connection a password"),
    (r'role "[^"]*" does not exist', "check the user, or let an administrator create that role"),
    (
        r'database "[^"]*" does not exist',
        "check the name of the database, or create it and run `duewheel db upgrade`",
    ),
    (
        r"no pg_hba\.conf entry|pg_hba\.conf rejects",
        "let an administrator of the server allow this user and host in pg_hba.conf",
    ),
    (
        r"too many clients|remaining connection slots|too many connections for",
        "the server has no connection left: close some, or raise its max_connections",
    ),
    (r"does not support SSL", "switch SSL on at the server, or choose another sslmode"),
    (
        r"certificate verify failed|root certificate|server certificate",
        "check sslrootcert, and that the host is named as in the server's certificate",
    ),
    (r"could not translate host name|Name or service not known", "check the name of the host"),
    (
        r"starting up|shutting down|in recovery mode|not currently accepting connections",
        "wait until the server takes connections, then try again",
    ),
)
_OTHERWISE = "check the address and that the server runs, then try again"


def advice_for(said: str) -> str:
    """The advice for a user if libpq could not connect.

    Args:
        said: the text of the driver's error.

    Example:
        >>> advice_for('FATAL:  database "shp" does not exist')
        'check the name of the database, or create it and run `duewheel db upgrade`'
    """
    for pattern, advice in _ADVICE:
        found = re.search(pattern, said)
        if found:
            return found.expand(advice) if "\\" in advice else advice
    return _OTHERWISE
