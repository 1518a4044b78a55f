"""The timing wheel through Airflow's common message queue trigger.

``MessageQueueTrigger(scheme="duewheel", topic=..., group=...)`` is the same as
``TimingWheelTrigger(topic=..., group=...)``: it takes the same arguments, is stored as a
``TimingWheelTrigger`` and shares its wheel. The same holds for
``MessageQueueTrigger(queue="duewheel://CONNECTION/TOPIC?...")``, an older form for which Airflow logs a
warning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

from airflow.providers.common.messaging.providers.base_provider import BaseMessageQueueProvider

from duewheel.store.values.errors import InvalidArgument
from duewheel.triggers.timing_wheel import TimingWheelTrigger

if TYPE_CHECKING:
    from collections.abc import Collection

    from airflow.triggers.base import BaseEventTrigger


ADDRESS = "duewheel://"

IN_ADDRESS = ("group", "ring_again", "min_messages", "max_wait", "tags", "filter", "start")
"""The arguments that an address may have after its question mark."""

FORM = (
    f"give {ADDRESS}CONNECTION/TOPIC?group=GROUP, further arguments of TimingWheelTrigger joined by &, each "
    f"once; the arguments are {', '.join(IN_ADDRESS)}"
)
"""The form of an address, for the error about another form."""


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
        """Whether the address of a queue has duewheel's scheme."""
        return queue.startswith(ADDRESS)

    def trigger_kwargs(self, queue: str, **kwargs: Any) -> dict[str, Any]:
        """Return the trigger's arguments from the address of a queue.

        Args:
            queue: connection, topic and further arguments of the trigger, escaped as in any URL.
            kwargs: the arguments that are not in the address.

        Raises:
            InvalidArgument: the address names no topic or no group, has an unknown argument or one twice, has
                a ``#`` that is not escaped, or names a server. The error does not repeat the address, which
                may hold a password.

        Example:
            >>> DueWheelMessageQueueProvider().trigger_kwargs("duewheel://shop/orders?group=canceller")
            {'duewheel_conn_id': 'shop', 'topic': 'orders', 'group': 'canceller'}
        """
        try:
            parts = urlsplit(queue)
        except ValueError:
            # The error's text is left out, too, because it may repeat the server part.
            raise InvalidArgument(f"queue is not an address; {FORM}") from None
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
        problem = _problem(arguments, names, kwargs)
        if problem is not None:
            raise InvalidArgument(f"queue {problem}; {FORM}")
        return arguments


def _problem(arguments: dict[str, str], names: list[str], beside: Collection[str]) -> str | None:
    """The first mistake in an address; only names of arguments are repeated. None without a mistake."""
    given = {**arguments, **dict.fromkeys(beside, "beside it")}
    for name, said in (("duewheel_conn_id", "connection"), ("topic", "topic"), ("group", "group")):
        if not given.get(name):
            return f"lacks its {said}"
    for name in names:
        if name not in IN_ADDRESS:
            # It may be a part of a password.
            return "has an argument that is unknown"
        if not arguments[name]:
            return f"has no value for its argument {name}"
        if names.count(name) > 1 or name in beside:
            return f"has its argument {name} twice"
    return None
