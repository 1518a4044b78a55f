"""The notifications of the broker, and how their texts are parsed.

Any login may send a NOTIFY with any text, so a text that no sender of the broker writes is parsed as None.
"""

from __future__ import annotations

import re
from typing import Final

#: A message was sent that is due soon: its topic's number, and the instant in Unix microseconds.
DUE_CHANNEL: Final = "duewheel_due"
#: A tick has released messages: the topic's number, and a 1 if a wheel has ticked.
RELEASED_CHANNEL: Final = "duewheel_released"
#: The largest number that a topic may have.
LAST_TOPIC_ID: Final = 2**20 - 1

_DUE: Final = re.compile(r"([0-9]{1,7}) (-?[0-9]{1,18})")
_RELEASED: Final = re.compile(r"([0-9]{1,7})( 1)?")


def due(text: str) -> tuple[int, int] | None:
    """The topic's number, and the instant in Unix microseconds, of a notification on `DUE_CHANNEL`."""
    match = _DUE.fullmatch(text)
    return None if match is None or not _is_topic_id(match[1]) else (int(match[1]), int(match[2]))


def released(text: str) -> tuple[int, bool] | None:
    """The topic's number, and whether a wheel has ticked, of a notification on `RELEASED_CHANNEL`."""
    match = _RELEASED.fullmatch(text)
    return None if match is None or not _is_topic_id(match[1]) else (int(match[1]), match[2] is not None)


def _is_topic_id(digits: str) -> bool:
    return 0 < int(digits) <= LAST_TOPIC_ID
