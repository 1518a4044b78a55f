"""Links from a task instance to its messages on the plugin's page."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlencode, urljoin

from airflow.sdk.bases.operatorlink import BaseOperatorLink
from airflow.sdk.configuration import conf

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey

PAGE = "plugin/duewheel"
"""The page's address below Airflow's own."""


def page_address(conn_id: str, view: str, **values: str | None) -> str:
    """The address of a view of the page.

    Args:
        conn_id: the connection to the broker.
        view: name of the view.
        values: parameters of the view; None is left out.

    Example:
        >>> page_address("duewheel_default", "messages", topic="orders")[-62:]
        'plugin/duewheel?broker=duewheel_default&view=messages&topic=orders'
    """
    base = str(conf.get("api", "base_url", fallback="/"))
    given = {name: value for name, value in values.items() if value is not None}
    query = urlencode({"broker": conn_id, "view": view, **given})
    return urljoin(base.rstrip("/") + "/", f"{PAGE}?{query}")


class TopicLink(BaseOperatorLink):
    """To the messages of the task's topic."""

    name = "Messages of the topic"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002 - Airflow's
        """The address of the list; empty if the task names no topic."""
        topic = getattr(operator, "topic", None)
        if not topic:
            return ""
        return page_address(str(getattr(operator, "duewheel_conn_id", "")), "messages", topic=topic)


class MessageLink(BaseOperatorLink):
    """To the one message that the task sent, moved or recalled by its id."""

    name = "The message"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002 - Airflow's
        """The address of the message with its history; empty before a message is known."""
        message_id = getattr(operator, "linked_message_id", None)
        if not message_id:
            return ""
        return page_address(str(getattr(operator, "duewheel_conn_id", "")), "message", id=message_id)


class DeadLettersLink(BaseOperatorLink):
    """To the dead letters of the task's group."""

    name = "Dead letters of the group"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002 - Airflow's
        """The address of the list, for all topics if the task names none."""
        return page_address(
            str(getattr(operator, "duewheel_conn_id", "")),
            "dead",
            group=getattr(operator, "group", None),
            topic=getattr(operator, "topic", None),
        )


class SparkUiLink(BaseOperatorLink):
    """To Spark's page on the task's session: its jobs and executors, as long as it runs.

    The operator stores the address as soon as the session has started, because the page exists only while the
    session runs.
    """

    name = "Spark UI"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002 - Airflow's
        """The address; empty if the session has no page or has not started."""
        return str(getattr(operator, "spark_ui_address", None) or "")
