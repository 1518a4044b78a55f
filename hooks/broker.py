"""The only place that turns an Airflow connection into a broker.

A connection of type ``duewheel`` names a PostgreSQL database: host, port, login, password, and the database
in its schema field. A host that begins with ``/`` is the folder of a Unix socket. Of the extras only what
:data:`LIBPQ_EXTRAS` and ``listen`` name is read: everything else libpq understands (``options``, ``service``,
``passfile`` and so on) would let whoever may edit a connection reach into the session or the machine of the
worker. In a connection of this type any other extra is an error, as it is most often a misspelt one; in one
of another type, which may be used as well, it is somebody else's.

Triggers run on an event loop and must not block it, so for them the connection is resolved by
:meth:`DueWheelHook.aresolve` over Airflow's asynchronous way, once, and everything that talks to the database
afterwards runs in a worker thread.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook, get_current_context

from duewheel.hooks.task_name import task_of
from duewheel.store.values.errors import InvalidArgument, UnknownTopic

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from duewheel.store import Broker

LIBPQ_EXTRAS = (
    "sslmode",
    "sslrootcert",
    "sslcert",
    "sslkey",
    "sslcrl",
    "connect_timeout",
    "target_session_attrs",
)
"""The extras that are passed on to libpq, under the same names."""

WORDS: dict[str, tuple[str, ...]] = {
    "sslmode": ("disable", "allow", "prefer", "require", "verify-ca", "verify-full"),
    "target_session_attrs": ("any", "read-write", "read-only", "primary", "standby", "prefer-standby"),
}
"""The extras that are one of a few words."""

LIBPQ_DEFAULTS: dict[str, Any] = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
"""How soon a dead network is noticed: seconds, but milliseconds for ``tcp_user_timeout``. Without these a
thread of the triggerer could wait for a vanished server for two hours."""

MAKE_THE_TOPIC = "In a DAG, CreateTopicOperator(task_id=..., topic=...) makes it, in a task before this one."

TRUE_WORDS = frozenset({"true", "t", "yes", "y", "on", "1"})
FALSE_WORDS = frozenset({"false", "f", "no", "n", "off", "0"})


@dataclass(frozen=True)
class BrokerAddress:
    """What a connection says about a broker."""

    dsn: str = field(repr=False)
    """A libpq connection string, with the password, so it is not shown."""
    listen: bool
    """Whether LISTEN may be used: not behind a pooler that shares sessions (PgBouncer by transaction)."""

    def open(self, task: str | None = None) -> Broker:
        """Return a new broker, which connects when it is first used; whoever asked for it closes it.

        Args:
            task: the task instance that what is sent shall name, as ``task_address`` writes it.
        """
        # Imported here: a DAG file that names an operator is read again and again, and needs no broker.
        if task is None:
            from duewheel.store import Broker

            return Broker(self.dsn, listen=self.listen)
        from duewheel.hooks.task_broker import TaskBroker

        return TaskBroker(self.dsn, listen=self.listen, task=task)


class DueWheelHook(BaseHook):
    """Reach the duewheel broker that an Airflow connection names.

    Args:
        duewheel_conn_id: id of a connection of type ``duewheel``.
        logger_name: name of the logger, as for every hook of Airflow.

    Example::

        with DueWheelHook("duewheel_default").get_conn() as broker:
            broker.send("order-timeout", b"42", delay=timedelta(minutes=15), key="order-42")
    """

    conn_name_attr = "duewheel_conn_id"
    default_conn_name = "duewheel_default"
    conn_type = "duewheel"
    hook_name = "duewheel"

    def __init__(self, duewheel_conn_id: str = default_conn_name, logger_name: str | None = None) -> None:
        super().__init__(logger_name=logger_name)
        self.duewheel_conn_id = duewheel_conn_id

    def get_conn(self) -> Broker:
        """Return a new broker. It is a context manager; whoever asked for it closes it.

        Within a task, what is sent through it names the task instance in the property ``sent_by_task``.

        Raises:
            InvalidArgument: the connection names no database, or says something that cannot be understood.
        """
        return self.resolve().open(_running_task())

    @contextmanager
    def connected(self, task: str | None = None) -> Iterator[Broker]:
        """A broker for the time of a block, whose errors say what an author of DAGs can do.

        Args:
            task: the task instance that acts, as ``task_address`` writes it, where that is not the one that
                runs: in its callbacks.

        Raises:
            InvalidArgument: as :meth:`get_conn`.
            DueWheelError: what the block raises.
        """
        with self.resolve().open(task or _running_task()) as broker:
            try:
                yield broker
            except UnknownTopic as error:
                advised = UnknownTopic(f"{error} {MAKE_THE_TOPIC}")
                advised.index = error.index
                raise advised from error

    @cached_property
    def broker(self) -> Broker:
        """The hook's own broker, made when it is first asked for."""
        return self.get_conn()

    def resolve(self) -> BrokerAddress:
        """Look the connection up and return what it says about the broker. Blocks: not for an event loop.

        Raises:
            InvalidArgument: as :meth:`get_conn`.
        """
        return address_of(self.get_connection(self.duewheel_conn_id))

    async def aresolve(self) -> BrokerAddress:
        """Do what :meth:`resolve` does without blocking the event loop.

        Raises:
            InvalidArgument: as :meth:`get_conn`.
        """
        return address_of(await self.aget_connection(self.duewheel_conn_id))

    def test_connection(self) -> tuple[bool, str]:
        """Say whether the broker can be reached and its schema is the one this version needs.

        Returns:
            Success, and a sentence for the form of the connection.
        """
        try:
            with self.get_conn() as broker:
                topics = broker.topics()
        except Exception as error:  # noqa: BLE001 - the form shows whatever went wrong, and never a traceback
            return False, f"{type(error).__name__}: {error}".strip()
        return True, f"Connected: the broker is ready and has {len(topics)} topics."


def _running_task() -> str | None:
    """The task instance that runs in this thread, if one does."""
    try:
        return task_of(get_current_context())
    except RuntimeError:
        return None


def address_of(connection: Connection) -> BrokerAddress:
    """Return what ``connection`` says about the broker.

    Args:
        connection: a connection of Airflow. Its type is not looked at, so that a Postgres connection that
            exists already may be used.

    Raises:
        InvalidArgument: the database is missing, or an extra is unknown or cannot be understood.

    Example:
        >>> address_of(Connection(conn_id="c", host="db", schema="shop", login="app")).listen
        True
    """
    # Imported here, as the broker is: see BrokerAddress.open.
    from psycopg2.extensions import make_dsn

    extras = _extras(connection)
    _check_extras(connection, extras)
    if not connection.schema:
        raise InvalidArgument(
            f"The connection {connection.conn_id!r} names no database. Fill in its field 'Database', called "
            "'schema' in JSON and URIs."
        )
    parameters: dict[str, Any] = {
        **LIBPQ_DEFAULTS,
        "host": connection.host or None,
        "port": connection.port or None,
        "user": connection.login or None,
        "password": connection.password or None,
        "dbname": connection.schema,
        **{name: extras[name] for name in LIBPQ_EXTRAS if extras.get(name) not in (None, "")},
    }
    return BrokerAddress(
        dsn=make_dsn(**parameters), listen=_flag(connection, "listen", extras.get("listen", True))
    )


def _extras(connection: Connection) -> dict[str, Any]:
    """The extras as a dictionary.

    Not by ``extra_dejson``: that also hands the values to Airflow's masking, which blocks the triggerer's
    event loop. Airflow has masked them already when it looked the connection up.
    """
    if not connection.extra:
        return {}
    try:
        extras = json.loads(connection.extra)
    except ValueError as error:
        raise InvalidArgument(
            f"The extras of the connection {connection.conn_id!r} are not JSON: {error}."
        ) from error
    if not isinstance(extras, dict):
        raise InvalidArgument(
            f"The extras of the connection {connection.conn_id!r} are a {type(extras).__name__}: give a JSON "
            'object such as {"sslmode": "require"}.'
        )
    return extras


def _check_extras(connection: Connection, extras: Mapping[str, object]) -> None:
    known = (*LIBPQ_EXTRAS, "listen")
    unknown = sorted(extras.keys() - set(known))
    if unknown and connection.conn_type == DueWheelHook.conn_type:
        raise InvalidArgument(
            f"The connection {connection.conn_id!r} has the unknown extra {', '.join(map(repr, unknown))}: "
            f"correct or remove it; there are {', '.join(known)}."
        )
    for name, words in WORDS.items():
        word = extras.get(name)
        if word not in (None, "") and word not in words:
            raise InvalidArgument(
                f"The extra {name!r} of the connection {connection.conn_id!r} is {word!r}; it takes one of "
                f"{', '.join(words)}."
            )


def _flag(connection: Connection, name: str, value: object) -> bool:
    if value is None or value == "":
        return True
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if word in TRUE_WORDS:
        return True
    if word in FALSE_WORDS:
        return False
    raise InvalidArgument(
        f"The extra {name!r} of the connection {connection.conn_id!r} is {value!r}; it takes true or false."
    )
