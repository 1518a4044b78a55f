"""Names of topics and groups, checked without a database.

The database checks them too, with the same messages. A DAG file is read on machines that reach no broker, and
should report a wrong name there.
"""

from __future__ import annotations

import re

from duewheel.store.values.bodies import check_text
from duewheel.store.values.errors import InvalidArgument

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,127}")


def check_topic_name(name: object) -> None:
    """Refuse a value that cannot name a topic.

    Args:
        name: 1 to 127 letters, digits, dots, hyphens or underscores.

    Raises:
        InvalidArgument: anything else.
        NulInText: a NUL character.
    """
    _check(name, "topic")


def check_group_name(name: object) -> None:
    """Refuse a value that cannot name a consumer group; the limits are as in :func:`check_topic_name`."""
    _check(name, "group")


def _check(name: object, kind: str) -> None:
    check_text(name, kind)
    if not _NAME.fullmatch(str(name)):
        raise InvalidArgument(
            f'"{str(name)[:200]}" is not a {kind} name: a name has 1 to 127 letters, digits, dots, hyphens '
            "or underscores. Choose another name."
        )
