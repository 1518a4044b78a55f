"""Extra data in the asset events of a task's outlets: topic, group and number of messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.sdk import BaseOperator

NEW = frozenset(("sent", "replaced"))
"""The outcomes of a send that has made a new message; only these are counted."""


def annotate_outlets(operator: BaseOperator, context: Mapping[str, Any], **added: str | int | None) -> None:
    """Add the task's numbers to the events of the operator's outlets; data that the author has put there
    stays.

    Args:
        operator: the task.
        context: Airflow's context of the task.
        added: values for each event's ``extra``; None is left out.
    """
    events = context.get("outlet_events")
    if events is None:
        return
    for outlet in operator.outlets:
        if isinstance(outlet, Asset):
            extra = events[outlet].extra
            for name, value in added.items():
                if value is not None:
                    extra.setdefault(name, value)
