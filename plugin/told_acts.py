"""Notifications between the processes of the API server about acts on a broker.

Each process keeps answers that cost much to compute. An act in one process makes the answers of all
processes wrong. So it notifies them, and each reads the notification before its next answer.
"""

from __future__ import annotations

import logging
from typing import Final
from weakref import WeakSet

import psycopg2

from duewheel.plugin.brokers import BrokerBusy, brokers
from duewheel.store import Broker, DueWheelError
from duewheel.store.database.connections import DriverConnection, PooledConnection, cursor_of, transaction

log = logging.getLogger(__name__)

_CHANNEL: Final = "duewheel_page"
#: The sessions that listen.
_listening: WeakSet[DriverConnection] = WeakSet()


def tell_of_act(connection_id: str) -> None:
    """Let each process of the API server know that a user has changed something."""
    try:
        with (
            # A long act of another user would keep the session for acts.
            brokers.lend(connection_id) as broker,
            broker.connection() as connection,
            transaction(connection) as cursor,
        ):
            cursor.execute("select pg_notify(%s, '')", (_CHANNEL,))
    except (BrokerBusy, DueWheelError, psycopg2.Error) as error:
        # The act has its outcome, and the user sees that.
        log.warning("Other processes of the API server may show numbers from before an act: %s", error)


def heard_of_act(broker: Broker) -> bool:
    """Whether something may have been changed since this process last asked.

    A session that has just begun may have missed a notification, so it counts as one. With a pooler that
    shares sessions none listens, and each request counts.
    """
    with broker.connection() as connection:
        if not isinstance(connection, PooledConnection) or not connection.prepares:
            return True
        is_new = connection not in _listening
        with cursor_of(connection) as cursor:
            # What was notified before a statement arrives with its answer.
            cursor.execute(f"listen {_CHANNEL}" if is_new else "select 1")
        _listening.add(connection)
        has_heard = bool(connection.notifies)
        connection.notifies.clear()
    return is_new or has_heard
