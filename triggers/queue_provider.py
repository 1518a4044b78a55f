"""Reach the timing wheel through Airflow's common message queue trigger.

``MessageQueueTrigger(scheme="duewheel", topic=..., group=...)`` is the same as
``TimingWheelTrigger(topic=..., group=...)``: it takes the same arguments, is stored as a
``TimingWheelTrigger`` and shares its wheel. So is ``MessageQueueTrigger(queue="duewheel://CONNECTION/TOPIC?...")``,
the older form, of which Airflow warns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from airflow.providers.common.messaging.providers.base_provider import BaseMessageQueueProvider

from duewheel.store.values.errors import InvalidArgument
from duewheel.triggers.timing_wheel import TimingWheelTrigger

if TYPE_CHECKING:
    from airflow.triggers.base import BaseEventTrigger


ADDRESS = "duewheel://"

IN_ADDRESS = ("group", "ring_again", "min_messages", "max_wait", "tags", "filter")
"""The arguments that an address may have behind its question mark."""

FORM = (
    f"give {ADDRESS}CONNECTION/TOPIC?group=GROUP, further arguments of TimingWheelTrigger joined by &, each "
    f"once; there are {', '.join(IN_ADDRESS)}"
)
"""What an address looks like, for whoever gave another one."""


class DueWheelMessageQueueProvider(BaseMessageQueueProvider):
    """Serves the scheme ``duewheel``.

    Example::

        MessageQueueTrigger(scheme="duewheel", topic="order-timeout", group="canceller")
    """

    scheme = "duewheel"

    def trigger_class(self) -> type[BaseEventTrigger]:
        """Return the trigger that ``MessageQueueTrigger`` makes."""
        return TimingWheelTrigger

    def queue_matches(self, queue: str) -> bool:
        """Whether the address of a queue is one of ours."""
        return queue.startswith(ADDRESS)

    def trigger_kwargs(self, queue: str, **kwargs: Any) -> dict[str, Any]:
        """Return the arguments that the address of a queue names.

        Args:
            queue: connection, topic and further arguments of the trigger, escaped as in any URL.
            kwargs: the arguments beside the address.

        Raises:
            InvalidArgument: it names no topic or no group, an argument that there is not, or one twice; it
                has a ``#`` that is not escaped; or it names a server. What was given is not repeated, since
                it may hold a password.

        Example:
            >>> DueWheelMessageQueueProvider().trigger_kwargs("duewheel://shop/orders?group=canceller")
            {'duewheel_conn_id': 'shop', 'topic': 'orders', 'group': 'canceller'}
        """
        try:
            parts = urlsplit(queue)
        except ValueError:
            # Not its text either, which may name the netloc.
            raise InvalidArgument(f"queue is no address; {FORM}") from None
        if "#" in queue:
            raise InvalidArgument(f"queue has a #: write it as %23; {FORM}")
        if "@" in parts.netloc or ":" in parts.netloc:
            raise InvalidArgument(
                f"queue names a server: give the id of an Airflow connection, which holds it; {FORM}"
            )
        given = parse_qsl(parts.query, keep_blank_values=True)
        arguments = {
            "duewheel_conn_id": unquote(parts.netloc),
            "topic": unquote(parts.path[1:]),
            **dict(given),
        }
        names = [name for name, _ in given]
        known = all(name in IN_ADDRESS for name in names) and len({*names, *kwargs}) == len(names) + len(
            kwargs
        )
        if not known or not all(arguments.values()) or "group" not in {*names, *kwargs}:
            raise InvalidArgument(
                "queue lacks its connection, topic or group, or has an argument that is empty, unknown or "
                f"given twice; {FORM}"
            )
        return arguments
