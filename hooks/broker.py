"""The only place that turns an Airflow connection into a broker.

A connection of type ``duewheel`` names a PostgreSQL database: host, port, login, password, and the database
in its schema field. A host that begins with ``/`` is the folder of a Unix socket. Of the extras, only
``listen``, ``call_timeout`` and the names in :data:`LIBPQ_EXTRAS` are read. Other options of libpq
(``options``, ``service``, ``passfile`` and so on) would let a user who may edit a connection reach into the
session or the machine of the worker. In a connection of this type any other extra is an error, because it is
usually misspelt. A connection of another type may be used, too; its other extras belong to other programs.

Triggers run on an event loop and must not block it. So for them :meth:`DueWheelHook.aresolve` resolves the
connection once, through Airflow's asynchronous call. All talk with the database afterwards runs in a worker
thread.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook, get_current_context

from duewheel.hooks.task_name import task_of
from duewheel.store.values.errors import InvalidArgument, UnknownTopic
from duewheel.store.values.kinds import a_kind

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
"""The extras whose value is one of a few words."""

MAKE_THE_TOPIC = "In a DAG, CreateTopicOperator(task_id=..., topic=...) makes it, in a task before this one."

TRUE_WORDS = frozenset({"true", "t", "yes", "y", "on", "1"})
FALSE_WORDS = frozenset({"false", "f", "no", "n", "off", "0"})


@dataclass(frozen=True)
class BrokerAddress:
    """The address of a broker, as a connection gives it."""

    dsn: str = field(repr=False)
    """A libpq connection string, with the password, so it is not shown."""
    listen: bool
    """Whether LISTEN may be used; not with a pooler that shares sessions (PgBouncer by transaction)."""
    call_timeout: timedelta
    """How long each statement of a call may wait for its answer."""

    def open(self, task: str | None = None) -> Broker:
        """Return a new broker, which connects when it is first used. The caller closes it.

        Args:
            task: the task instance that sent messages are to name, as ``task_address`` writes it.
        """
        # Imported here because a DAG file that names an operator is read again and again, and needs no
        # broker.
        if task is None:
            from duewheel.store import Broker

            return Broker(self.dsn, listen=self.listen, call_timeout=self.call_timeout)
        from duewheel.hooks.task_broker import TaskBroker

        return TaskBroker(self.dsn, listen=self.listen, call_timeout=self.call_timeout, task=task)


class DueWheelHook(BaseHook):
    """Reach the duewheel broker that an Airflow connection names.

    Args:
        duewheel_conn_id: id of a connection of type ``duewheel``.
        logger_name: name of the logger, an argument of every Airflow hook.

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
        """Return a new broker, a context manager. The caller closes it.

        Within a task, messages sent through it name the task instance in the property ``sent_by_task``.

        Raises:
            InvalidArgument: the connection names no database, or has a value that cannot be understood.
        """
        return self.resolve().open(_running_task())

    @contextmanager
    def connected(self, task: str | None = None, address: BrokerAddress | None = None) -> Iterator[Broker]:
        """A broker that is open until the block ends, with errors that tell a DAG author what to do.

        Args:
            task: the task instance that acts, as ``task_address`` writes it, if it is not the running one, as
                in a callback.
            address: the broker's address, if the caller has looked it up.

        Raises:
            InvalidArgument: see :meth:`get_conn`.
            DueWheelError: the error that the block raises.
        """
        with (address or self.resolve()).open(task or _running_task()) as broker:
            try:
                yield broker
            except UnknownTopic as error:
                advised = UnknownTopic(f"{error} {MAKE_THE_TOPIC}")
                advised.index = error.index
                raise advised from error

    @cached_property
    def broker(self) -> Broker:
        """The hook's own broker, made at the first use."""
        return self.get_conn()

    def resolve(self) -> BrokerAddress:
        """Look the connection up and return the broker's address. The call blocks, so it is not for an event
        loop.

        Raises:
            InvalidArgument: see :meth:`get_conn`.
        """
        return address_of(self.get_connection(self.duewheel_conn_id))

    async def aresolve(self) -> BrokerAddress:
        """Like :meth:`resolve`, without blocking the event loop.

        Raises:
            InvalidArgument: see :meth:`get_conn`.
        """
        return address_of(await self.aget_connection(self.duewheel_conn_id))

    def test_connection(self) -> tuple[bool, str]:
        """Check whether the broker can be reached and its schema is the one that this version needs.

        Returns:
            Success, and a sentence for the form of the connection.
        """
        try:
            with self.get_conn() as broker:
                topics = broker.topics()
        except Exception as error:  # noqa: BLE001 - the form shows any error as a sentence, never a traceback
            return False, f"{type(error).__name__}: {error}".strip()
        return True, f"Connected: the broker is ready and has {len(topics)} topics."


def _running_task() -> str | None:
    try:
        return task_of(get_current_context())
    except RuntimeError:
        return None


def address_of(connection: Connection) -> BrokerAddress:
    """Return the broker's address from ``connection``.

    Args:
        connection: a connection of Airflow. Its type does not matter, so an existing Postgres connection may
            be used.

    Raises:
        InvalidArgument: the database is missing, or an extra is unknown or cannot be understood.

    Example:
        >>> address_of(Connection(conn_id="c", host="db", schema="shop", login="app")).listen
        True
    """
    # Imported here, like the broker: see BrokerAddress.open.
    from psycopg2.extensions import make_dsn

    from duewheel.store.database.watchdog import CALL_SECONDS

    extras = _extras(connection)
    _check_extras(connection, extras)
    if not connection.schema:
        raise InvalidArgument(
            f"The connection {connection.conn_id!r} names no database. Fill in its field 'Database', called "
            "'schema' in JSON and URIs."
        )
    parameters: dict[str, Any] = {
        "host": connection.host or None,
        "port": connection.port or None,
        "user": connection.login or None,
        "password": connection.password or None,
        "dbname": connection.schema,
        **{name: extras[name] for name in LIBPQ_EXTRAS if extras.get(name) not in (None, "")},
    }
    return BrokerAddress(
        dsn=make_dsn(**parameters),
        listen=_flag(connection, "listen", extras.get("listen", True)),
        call_timeout=_seconds(connection, "call_timeout", extras.get("call_timeout"), CALL_SECONDS),
    )


def _extras(connection: Connection) -> dict[str, Any]:
    """The extras as a dictionary.

    This avoids ``extra_dejson``, which also hands the values to Airflow's masking and so blocks the
    triggerer's event loop. Airflow has already masked the values when it looked the connection up.
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
            f"The extras of the connection {connection.conn_id!r} are {a_kind(extras)}: give a JSON "
            'object such as {"sslmode": "require"}.'
        )
    return extras


def _check_extras(connection: Connection, extras: Mapping[str, object]) -> None:
    known = (*LIBPQ_EXTRAS, "listen", "call_timeout")
    unknown = sorted(extras.keys() - set(known))
    if unknown and connection.conn_type == DueWheelHook.conn_type:
        raise InvalidArgument(
            f"The connection {connection.conn_id!r} has the unknown extra {', '.join(map(repr, unknown))}: "
            f"correct or remove it; the extras are {', '.join(known)}."
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


def _seconds(connection: Connection, name: str, value: object, default_seconds: float) -> timedelta:
    if value is None or value == "":
        return timedelta(seconds=default_seconds)
    try:
        span = timedelta(seconds=float(str(value)))
    except (ValueError, OverflowError):
        span = timedelta(0)
    if span <= timedelta(0):
        raise InvalidArgument(
            f"The extra {name!r} of the connection {connection.conn_id!r} is {value!r}; it takes a number of "
            f"seconds above 0, such as {default_seconds:g}."
        )
    return span
