"""What the asset events of a task's outlets say: topic, group and how many messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.sdk import BaseOperator

NEW = frozenset(("sent", "replaced"))
"""The outcomes of a send after which a message waits that was not there before: these are counted."""


def tell_outlets(operator: BaseOperator, context: Mapping[str, Any], **said: str | int | None) -> None:
    """Add to the events of the operator's outlets what it did; what the author has put there stays.

    Args:
        operator: the task.
        context: Airflow's context of the task.
        said: what is added to each event's ``extra``; None is left out.
    """
    events = context.get("outlet_events")
    if events is None:
        return
    for outlet in operator.outlets:
        if isinstance(outlet, Asset):
            extra = events[outlet].extra
            for name, value in said.items():
                if value is not None:
                    extra.setdefault(name, value)
