"""Reach the timing wheel through Airflow's common message queue trigger.

``MessageQueueTrigger(scheme="duewheel", topic=..., group=...)`` is the same as
``TimingWheelTrigger(topic=..., group=...)``: it takes the same arguments, is stored as a
``TimingWheelTrigger`` and shares its wheel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.providers.common.messaging.providers.base_provider import BaseMessageQueueProvider

from duewheel.triggers.timing_wheel import TimingWheelTrigger

if TYPE_CHECKING:
    from airflow.triggers.base import BaseEventTrigger


class DueWheelMessageQueueProvider(BaseMessageQueueProvider):
    """Serves the scheme ``duewheel``.

    Example::

        MessageQueueTrigger(scheme="duewheel", topic="order-timeout", group="canceller")
    """

    scheme = "duewheel"

    def trigger_class(self) -> type[BaseEventTrigger]:
        """Return the trigger that ``MessageQueueTrigger`` makes."""
        return TimingWheelTrigger
