"""Connections to the broker's database: a pool of autocommit sessions, and the caller's own.

Every call of the broker is one statement and commits separately. So a connection is lent only for a call, and
a pool keeps a few of them open. Before lending an idle connection, the pool notices if the server has ended
it, as a restart does. A connection that breaks in use is closed, together with all idle ones, because they
are as old. Only a read is then tried again, on a fresh connection. Whether a broken write was carried out is
unknown, and the error tells the caller so.

With ``connection=`` a call runs in the caller's own transaction instead, which is never committed or rolled
back here. A child of ``fork`` leaves the parent's connections alone and opens its own.
"""

from __future__ import annotations

import logging
import os
import re
import select
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, cast

import psycopg2
import psycopg2.extensions
from psycopg2.errors import DeadlockDetected, SerializationFailure
from psycopg2.extensions import TRANSACTION_STATUS_IDLE, make_dsn, parse_dsn

from duewheel.store.database.forking import begin_in_each_process, no_fork_meanwhile
from duewheel.store.database.prepared import Prepared
from duewheel.store.database.unreachable import advice_for
from duewheel.store.database.watchdog import CALL_SECONDS, WatchedConnection, WatchedCursor
from duewheel.store.values.errors import (
    BrokerUnreachable,
    DueWheelError,
    InvalidArgument,
    from_database,
    said,
)
from duewheel.store.values.instants import to_datetime

DriverConnection = psycopg2.extensions.connection
DriverCursor = psycopg2.extensions.cursor

if TYPE_CHECKING:
    from psycopg import Connection as Psycopg3Connection
    from sqlalchemy import Connection as SQLAlchemyConnection
    from sqlalchemy.orm import Session

    class HookConnection(Protocol):
        """The result of a hook that does not tell its driver, such as Airflow's ``PostgresHook``."""

        def cursor(self, *args: Any, **kwargs: Any) -> Any: ...
        def commit(self) -> None: ...
        def close(self) -> None: ...

    #: The types of ``connection=``: the caller's transaction.
    CallerConnection = (
        DriverConnection | Psycopg3Connection[Any] | SQLAlchemyConnection | Session | HookConnection
    )

log = logging.getLogger(__name__)


Rows = list[tuple[Any, ...]]
T = TypeVar("T")

#: How many times a call's statement is run again after a deadlock or a serialization failure.
_REPEATS: Final = 9

#: How many idle connections a pool keeps open.
IDLE_CONNECTIONS = 8

# A cursor holds on to its rows, of which each may have a body of 4 MiB: so many are a message and its lease.
_KEPT_ROWS: Final = 2

#: Goes before a statement that ticks, in the same message: so the transaction is the statement's own.
OWN_TRANSACTION: Final = "set local duewheel.own_transaction = on; "

#: The transactions that the broker needs, whatever the login's and the database's defaults are.
_NEEDED: Final = "isolation level read committed, read write, not deferrable"
#: Begins a transaction on a connection that commits each statement separately.
BEGIN: Final = f"begin {_NEEDED}"
# Sets the same for all transactions of a session, if the session belongs to the connection: a pooler makes up
# the process id that it reports.
_TAKE_SESSION: Final = """
select case when pg_backend_pid() = %s
    then set_config('default_transaction_isolation', 'read committed', false)
        || set_config('default_transaction_read_only', 'off', false)
        || set_config('default_transaction_deferrable', 'off', false) end is not null
"""


def take_session(connection: WatchedConnection) -> bool:
    """Prepare an autocommit connection's session for the transactions that the broker needs.

    Returns:
        Whether the session belongs to the connection. Otherwise a pooler shares it.

    Raises:
        psycopg2.Error: the server cannot be asked.
    """
    with cursor_of(connection) as cursor:
        cursor.execute(_TAKE_SESSION, (connection.info.backend_pid,))
        ((is_own,),) = cursor.fetchall()
    connection.owns_session = bool(is_own)
    if not is_own:
        log.info(
            "the connection goes through a pooler, so nothing is prepared in its session; if the pooler "
            "shares sessions, as PgBouncer by transaction does, set listen=False, because no notification "
            "arrives"
        )
    return bool(is_own)


def of_the_transaction(connection: DriverConnection) -> str:
    """The text sent before a statement, in the same message, if the session is not the connection's.

    A pooler may use another session for each transaction, so a setting of one is not in effect in the next.
    """
    if connection.info.parameter_status("in_hot_standby") == "on":
        # A standby refuses a transaction that writes.
        return "set transaction isolation level read committed; "
    return f"set transaction {_NEEDED}; "


def libpq_dsn(dsn: str) -> str:
    """The address as libpq takes it: SQLAlchemy's ``postgresql+psycopg2://`` becomes ``postgresql://``.

    Raises:
        InvalidArgument: it is neither a libpq string nor a URL.
    """
    address = re.sub(r"^postgres(ql)?\+psycopg2?://", "postgresql://", dsn)
    try:
        parse_dsn(address)
    except (psycopg2.ProgrammingError, ValueError) as error:
        # A ValueError is a NUL, or bytes that are not text. A text that libpq quotes may be the password.
        reason = re.sub(r'".*"', '"..."', said(error))
        raise InvalidArgument(
            f"the dsn cannot be read ({reason}): give a libpq string "
            "such as 'host=... dbname=...' or a URL such as postgresql://user@host/database"
        ) from None
    return address


#: How soon a silent network or server is noticed: seconds, but milliseconds for ``tcp_user_timeout``. Without
#: these settings a wait for an answer lasts for hours.
NETWORK_DEFAULTS: Final = {
    "connect_timeout": 10,
    "keepalives_idle": 20,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}


def with_ends(dsn: str, **named: str) -> str:
    """An address whose connections notice a silent server within 40 s. Its own settings have priority, then
    the variables of libpq's environment.

    Args:
        dsn: see :func:`libpq_dsn`.
        named: further parameters of libpq.

    Raises:
        InvalidArgument: see :func:`libpq_dsn`.

    Example:
        >>> parse_dsn(with_ends("dbname=shop"))["tcp_user_timeout"]
        '30000'
    """
    from_environment = {}
    if "PGCONNECT_TIMEOUT" in os.environ:
        from_environment["connect_timeout"] = os.environ["PGCONNECT_TIMEOUT"]
    parameters: dict[str, Any] = {
        **NETWORK_DEFAULTS,
        **from_environment,
        **parse_dsn(libpq_dsn(dsn)),
        **named,
    }
    return str(make_dsn(**parameters))


def driver_connection(connection: CallerConnection) -> DriverConnection:
    """The connection on which the caller's transaction runs, with the names of psycopg2.

    Args:
        connection: a connection of psycopg2 or psycopg 3, or a SQLAlchemy ``Connection`` or ``Session`` on
            one of them. A SQLAlchemy connection begins its transaction if it has not yet.

    Raises:
        InvalidArgument: something else, or another driver.
    """
    found: object = connection
    if "sqlalchemy" in sys.modules and not isinstance(found, DriverConnection):
        from sqlalchemy import Connection as SQLAlchemyConnection
        from sqlalchemy.orm import Session, scoped_session

        if isinstance(found, (Session, scoped_session)):
            found = found.connection()
        if isinstance(found, SQLAlchemyConnection):
            # A statement below SQLAlchemy does not begin its transaction, and its commit() would then commit
            # nothing.
            if not found.in_transaction():
                found.begin()
            found = found.connection
        found = getattr(found, "dbapi_connection", found)
    # A connection of psycopg 3 exists only if its program has imported psycopg.
    if "psycopg" in sys.modules and not isinstance(found, DriverConnection):
        import psycopg

        if isinstance(found, psycopg.Connection):
            from duewheel.store.database.psycopg3 import CallerOfPsycopg3

            return cast("DriverConnection", CallerOfPsycopg3(found))
    if not isinstance(found, DriverConnection):
        raise InvalidArgument(
            f"connection is a {type(found).__module__}.{type(found).__name__}: give a connection of "
            "psycopg2 or psycopg 3, or a SQLAlchemy Connection or Session on one of them; "
            "any other driver can call the SQL functions"
        )
    return found


class PooledConnection(WatchedConnection):
    """A connection of the pool, with its cached objects.

    Attributes:
        process: the process that opened it, and alone may use it.
        begins: sent before each statement that is a separate transaction.
        prepares: whether statements are prepared in its session, which then is its own.
        prepared: the names of the statements that its session has prepared.
        kept: a cursor for one statement after another; it holds on to the rows of the last one.
    """

    def __init__(self, dsn: str, **options: Any) -> None:
        super().__init__(dsn, **options)
        self.autocommit = True
        self.process = os.getpid()
        self.begins = ""
        self.prepares = False
        self.prepared: set[str] = set()
        self.kept = cursor_of(self)
        self._poller = select.poll()
        self._poller.register(self, select.POLLIN)

    def has_input(self) -> bool:
        """Whether the server has sent something while the connection was idle, usually to end it."""
        return bool(self._poller.poll(0))

    def text_of(self, statement: Prepared) -> str:
        """The text that runs a statement here; prepares it the first time.

        Raises:
            psycopg2.Error: it cannot be prepared, for example without the schema.
        """
        if statement.name not in self.prepared:
            self.kept.execute(statement.prepare)
            self.prepared.add(statement.name)
        return statement.call


class Database:
    """The broker's database: runs statements, on pooled connections or the caller's.

    Args:
        dsn: libpq string or URL.
        clock: gives the instant every function takes for now; None is the database's own clock.
        on_first_connection: called once with the first connection of this object, before it is used.
        prepare: whether statements are prepared, in sessions that stay with their connection.
        answer_seconds: the longest wait for the answer to a statement.
    """

    def __init__(
        self,
        dsn: str,
        *,
        clock: Callable[[], datetime] | None = None,
        on_first_connection: Callable[[DriverConnection], None] | None = None,
        prepare: bool = False,
        answer_seconds: float = CALL_SECONDS,
    ) -> None:
        self.dsn = libpq_dsn(dsn)
        self._clock = clock
        self._address = with_ends(self.dsn, fallback_application_name="duewheel", client_encoding="UTF8")
        self._on_first_connection = on_first_connection
        self._prepares = prepare
        self.answer_seconds = answer_seconds
        self._closed = False
        begin_in_each_process(self, Database._begin)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[PooledConnection] = []

    def now(self) -> datetime | None:
        """The injected instant, or None for the database's clock."""
        return None if self._clock is None else to_datetime(self._clock(), "clock()")

    def connect(self) -> PooledConnection:
        """Open an autocommit connection that belongs to the caller of this method.

        Raises:
            BrokerUnreachable: the server does not answer, or refuses.
        """
        try:
            with no_fork_meanwhile():
                connection = psycopg2.connect(self._address, connection_factory=PooledConnection)
            connection.answer_seconds = self.answer_seconds
            connection.prepares = self._prepares and take_session(connection)
            if not connection.prepares:
                connection.begins = of_the_transaction(connection)
            return connection
        except psycopg2.OperationalError as error:
            raise BrokerUnreachable(
                f"the database cannot be reached ({said(error)}): {advice_for(str(error))}"
            ) from error

    @contextmanager
    def lend(self) -> Iterator[PooledConnection]:
        """An autocommit connection of the pool for the length of the block."""
        connection = self._take()
        try:
            self.verify(connection)
            yield connection
        finally:
            self._give_back(connection)

    def run(self, act: Callable[[PooledConnection], T]) -> T:
        """Run a call of several statements, which is one transaction, as :meth:`rows` runs one statement.

        Args:
            act: what the call does with a connection of the pool. It may be called several times.

        Raises:
            DueWheelError, BrokerUnreachable: see :meth:`rows`.
        """

        def once() -> T:
            with self.lend() as lent:
                return act(lent)

        return _again(once)

    def rows(
        self,
        statement: str | Prepared,
        parameters: Sequence[Any],
        connection: CallerConnection | None = None,
        *,
        answer_seconds: float | None = None,
    ) -> Rows:
        """Run one statement once and return its rows.

        Args:
            statement: SQL with ``%s`` for each parameter; prepared only on connections of the pool.
            parameters: the values.
            connection: the caller's transaction; None runs and commits on a connection of the pool.
            answer_seconds: the longest wait for its answer on the pool's connection; None is the usual one.

        Raises:
            DueWheelError: the database refused the call; the class follows from the SQLSTATE.
            BrokerUnreachable: the connection broke; the statement may have been carried out.
        """
        if connection is not None:
            caller = driver_connection(connection)
            self.verify(caller)
            return fetch(caller, text_of(statement), parameters)
        return _again(self._rows_once, statement, parameters, answer_seconds)

    def read(
        self, statement: str | Prepared, parameters: Sequence[Any], connection: CallerConnection | None = None
    ) -> Rows:
        """Like :meth:`rows`, for statements that change nothing: tried once more if the connection broke."""
        if connection is not None:
            return self.rows(statement, parameters, connection)
        try:
            return self.rows(statement, parameters)
        except BrokerUnreachable as error:
            log.info("trying a read again on a new connection: %s", error)
            return self.rows(statement, parameters)

    def close(self) -> None:
        """Close the idle connections; a connection in use is closed when its call ends."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def verify(self, connection: DriverConnection) -> None:
        """Check the database by its first connection, once for this object."""
        check = self._on_first_connection
        if check is not None:
            check(connection)
            self._on_first_connection = None

    def _rows_once(
        self, statement: str | Prepared, parameters: Sequence[Any], answer_seconds: float | None
    ) -> Rows:
        # Like lend() and translating_errors(), without their generators: each receive and answer runs this.
        lent = self._take()
        try:
            if self._on_first_connection is not None:
                self.verify(lent)
            if answer_seconds is not None:
                lent.answer_seconds = answer_seconds
            text = _begun(lent, self._text(lent, statement))
            cursor = lent.kept
            cursor.execute(text, parameters)
            rows = cursor.fetchall() if cursor.description is not None else []
            if len(rows) > _KEPT_ROWS:
                lent.kept = cursor_of(lent)
            return rows
        except psycopg2.Error as error:
            ours = explanation(lent, error)
            if ours is None:
                raise
            raise ours from error
        finally:
            self._give_back(lent)

    def _text(self, connection: PooledConnection, statement: str | Prepared) -> str:
        if isinstance(statement, str):
            return statement
        return connection.text_of(statement) if connection.prepares else statement.text

    def _take(self) -> PooledConnection:
        with self._lock:
            if self._closed:
                raise InvalidArgument("this broker is closed: make another one")
            while self._idle:
                connection = self._idle.pop()
                if not connection.closed and not connection.has_input():
                    connection.answer_seconds = self.answer_seconds
                    return connection
                connection.close()
        return self.connect()

    def _give_back(self, connection: PooledConnection) -> None:
        if connection.process != os.getpid():
            # Lent before a fork, so it is the parent's: nothing may be sent to the server.
            return
        if connection.closed:
            with self._lock:
                idle, self._idle = self._idle, []
            for other in idle:
                other.close()
            return
        if connection.get_transaction_status() != TRANSACTION_STATUS_IDLE or not connection.autocommit:
            # The borrower left a transaction open. A rollback here may meet a connection that just broke.
            try:
                _reset(connection)
            except psycopg2.Error as error:
                log.warning("closing a connection that cannot be reset: %s", error)
                connection.close()
                return
        with self._lock:
            keep = not self._closed and len(self._idle) < IDLE_CONNECTIONS
            if keep:
                self._idle.append(connection)
        if not keep:
            connection.close()


def cursor_of(connection: DriverConnection) -> DriverCursor:
    """A plain cursor whatever cursor class the caller's connection makes, so that rows are tuples."""
    is_ours = isinstance(connection, WatchedConnection)
    return connection.cursor(cursor_factory=WatchedCursor if is_ours else DriverCursor)


@contextmanager
def transaction(connection: DriverConnection) -> Iterator[DriverCursor]:
    """A cursor whose statements commit together: in the open transaction, or else in a new one.

    An autocommit connection gets a new transaction, which ends with the block. Any other transaction is the
    caller's to end. Errors are translated (:func:`translating_errors`).
    """
    own = connection.autocommit and connection.info.transaction_status == TRANSACTION_STATUS_IDLE
    with translating_errors(connection), cursor_of(connection) as cursor:
        try:
            if own:
                # On a caller's connection the caller decides whether the transaction may write.
                is_ours = isinstance(connection, PooledConnection)
                cursor.execute(BEGIN if is_ours else "begin isolation level read committed")
            yield cursor
            if own:
                cursor.execute("commit")
        except BaseException:
            if own and not connection.closed:
                cursor.execute("rollback")
            raise


def explanation(connection: DriverConnection, error: psycopg2.Error) -> DueWheelError | None:
    """The duewheel error for a driver's error, or None if the driver's own error is clearest."""
    ours = from_database(error)
    if ours is not None:
        return ours
    if connection.closed:
        return BrokerUnreachable(
            f"the connection to the database broke ({said(error)}): whether the "
            "statement was carried out is unknown; ask again, or send again with the same idempotency_key"
        )
    return None


def text_of(statement: str | Prepared) -> str:
    """The statement as it runs without being prepared."""
    return statement if isinstance(statement, str) else statement.text


@contextmanager
def translating_errors(connection: DriverConnection) -> Iterator[None]:
    """Raise errors of the driver as errors of this package, if it has a class for them."""
    try:
        yield
    except psycopg2.Error as error:
        ours = explanation(connection, error)
        if ours is None:
            raise
        raise ours from error


def fetch(connection: DriverConnection, statement: str, parameters: Sequence[Any]) -> Rows:
    """Run one statement on a connection and return its rows; errors are translated.

    On a connection of a pool, outside of a transaction, it is run as :meth:`Database.rows` runs it.
    """

    def once() -> Rows:
        with translating_errors(connection), cursor_of(connection) as cursor:
            cursor.execute(_begun(connection, statement), parameters)
            return cursor.fetchall() if cursor.description is not None else []

    return _again(once) if _is_own_transaction(connection) else once()


def _again(call: Callable[..., T], *given: Any) -> T:
    """Run one transaction, again after an error that only its moment caused: nothing was done then."""
    for _ in range(_REPEATS):
        try:
            return call(*given)
        except (DeadlockDetected, SerializationFailure) as error:
            log.info("running a call again: %s", said(error))
    return call(*given)


def _is_own_transaction(connection: DriverConnection) -> bool:
    """Whether the next statement is a separate transaction, on a connection of a pool."""
    return (
        isinstance(connection, PooledConnection)
        and connection.autocommit
        and connection.info.transaction_status == TRANSACTION_STATUS_IDLE
    )


def _begun(connection: DriverConnection, statement: str) -> str:
    """The statement as it is sent: a separate transaction first sets its isolation and access mode.

    Procedures begin their transactions themselves, which they cannot do within a message's transaction.
    """
    if (
        not isinstance(connection, PooledConnection)
        or not connection.begins
        or statement.startswith("call ")
        or not _is_own_transaction(connection)
    ):
        return statement
    return connection.begins + statement


def _reset(connection: DriverConnection) -> None:
    with cursor_of(connection) as cursor:
        if connection.info.transaction_status != TRANSACTION_STATUS_IDLE:
            cursor.execute("rollback")
    if not connection.autocommit:
        connection.rollback()
        connection.autocommit = True
