"""Dead letters that were sent again as new messages, with another body, and their new messages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from duewheel.store import Broker
from duewheel.store.operations import overview
from duewheel.store.values.stored_messages import HistoryEntry

#: The property of a message that was a dead letter and was edited: the id that it had.
EDITED_FROM: Final = "edited_from"


def key_of_edited(message_id: str, group: str, attempt: int | None) -> str:
    """The idempotency key of the message that replaces a dead letter, so that it is sent once."""
    return f"edited {message_id} {group} {attempt}"


def edited_to(broker: Broker, topic: str, message_id: str, history: Iterable[HistoryEntry]) -> dict[str, str]:
    """By group, the newest message that replaced a dead letter of this message."""
    dead: dict[str, HistoryEntry] = {}
    found: dict[str, str] = {}
    for entry in history:
        group = entry.consumer_group
        if group is None:
            continue
        if entry.state == "DLQ":
            dead[group] = entry
        elif entry.state == "Deleted" and group in dead:
            key = key_of_edited(message_id, group, dead[group].attempt)
            for one in overview.messages_by_name(broker, key, topic):
                found[group] = one.message_id
    return found
