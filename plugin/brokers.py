"""The brokers that the page shows: Airflow's connections of type ``duewheel``.

A process of the API server has four sessions for each broker at most: for cheap lists, for the numbers of the
groups in the strip, for other numbers that may take long, and for acts. Requests use a session one after
another, and each statement has a time limit. So the page never makes a broker slow, however many users have
it open, and a list waits for no number.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, Literal, cast

import psycopg2
from airflow.exceptions import AirflowNotFoundException  # type: ignore[attr-defined]  # given by __getattr__
from airflow.models import Connection
from airflow.sdk import Connection as SdkConnection
from airflow.utils.session import create_session
from psycopg2.extensions import make_dsn
from sqlalchemy import select

from duewheel.hooks.broker import DueWheelHook, address_of
from duewheel.store import Broker, BrokerNotUpgraded
from duewheel.store.database.forking import begin_in_each_process
from duewheel.store.database.schema import refuse_other_revision

STATEMENT_TIMEOUT_SECONDS: Final = 5
#: How long a statement that reads waits for a table's lock, which upkeep holds for milliseconds.
LOCK_TIMEOUT_SECONDS: Final = 2
#: How long a silent server holds a session.
_ANSWER_TIMEOUT: Final = timedelta(seconds=STATEMENT_TIMEOUT_SECONDS + 3)
#: How long a request waits for earlier requests.
TURN_TIMEOUT_SECONDS: Final = 10.0
_ENVIRONMENT: Final = "AIRFLOW_CONN_"

#: What a session of a broker is for.
Use = Literal["lists", "groups", "numbers", "acts"]


class UnknownBroker(Exception):
    """No connection of type ``duewheel`` has this id."""


class BrokerBusy(Exception):
    """Earlier requests took longer than this one could wait."""


@dataclass
class _Session:
    dsn: str
    broker: Broker
    turn: threading.Lock = field(default_factory=threading.Lock)


class Brokers:
    """The brokers of a process, by the ids of their connections."""

    def __init__(self) -> None:
        begin_in_each_process(self, Brokers._begin)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._sessions: dict[tuple[str, Use], _Session] = {}

    def connection_ids(self) -> list[str]:
        """The ids of the connections that can be listed: in Airflow's database and in the environment.

        Connections in a secrets backend cannot be listed; the page shows such a connection when its address
        names it.
        """
        with create_session() as session:
            stored = session.scalars(
                select(Connection.conn_id).where(Connection.conn_type == DueWheelHook.conn_type)
            ).all()
        named = [name.removeprefix(_ENVIRONMENT).lower() for name in os.environ if _ENVIRONMENT in name]
        return sorted({*stored, *(one for one in named if _found(one) is not None)})

    @contextmanager
    def lend(
        self, connection_id: str, use: Use = "lists", turn_seconds: float | None = None
    ) -> Iterator[Broker]:
        """The broker of a connection, for this block alone until it ends.

        Args:
            connection_id: the connection.
            use: what the block does with it; requests of one use wait for each other.
            turn_seconds: how long it waits for earlier requests; None is ten seconds.

        Raises:
            UnknownBroker: the connection does not exist, or is of another type.
            InvalidArgument: the connection has a value that cannot be understood.
            BrokerBusy: earlier requests did not end in time.
            BrokerNotUpgraded: a statement failed, and the schema is of another revision than this program.
        """
        session = self._session(connection_id, use)
        if not session.turn.acquire(timeout=TURN_TIMEOUT_SECONDS if turn_seconds is None else turn_seconds):
            raise BrokerBusy
        try:
            yield session.broker
        except (BrokerNotUpgraded, psycopg2.ProgrammingError):
            # The schema was verified when the session began, and may have been changed since.
            with session.broker.connection() as connection:
                refuse_other_revision(connection)
            raise
        finally:
            session.turn.release()

    def require(self, connection_id: str) -> None:
        """Raise UnknownBroker unless a connection of type ``duewheel`` has this id."""
        if _found(connection_id) is None:
            raise UnknownBroker

    def close(self) -> None:
        """End all sessions."""
        with self._lock:
            sessions, self._sessions = self._sessions, {}
        for session in sessions.values():
            session.broker.close()

    def _session(self, connection_id: str, use: Use) -> _Session:
        connection = _found(connection_id)
        if connection is None:
            raise UnknownBroker
        # Both of Airflow's connection classes have the attributes that are read here.
        address = address_of(cast("SdkConnection", connection))
        # A pooler that shares sessions refuses options.
        limit = f"-c statement_timeout={STATEMENT_TIMEOUT_SECONDS}s"
        if use != "acts":
            limit += f" -c lock_timeout={LOCK_TIMEOUT_SECONDS}s"
        limits = {"options": limit} if address.listen else {}
        dsn = make_dsn(address.dsn, application_name="duewheel page", **limits)
        with self._lock:
            known = self._sessions.get((connection_id, use))
            if known is not None and known.dsn == dsn:
                return known
            # The connection was edited. A request that has the old session keeps it to its end.
            broker = Broker(dsn, listen=address.listen, call_timeout=_ANSWER_TIMEOUT)
            made = self._sessions[connection_id, use] = _Session(dsn, broker)
        if known is not None:
            known.broker.close()
        return made


def _found(connection_id: str) -> Connection | None:
    """The connection, if it exists and is of type ``duewheel``; the page never opens another."""
    try:
        connection = Connection.get_connection_from_secrets(connection_id)
    except AirflowNotFoundException:
        return None
    return connection if connection.conn_type == DueWheelHook.conn_type else None


#: The brokers of this process.
brokers = Brokers()
