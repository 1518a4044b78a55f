"""The broker as Python programs see it: one object, one database, every operation a method.

Each group of operations is a class, next to its SQL and checks. This module has the broker as a whole: making
it, closing it, its schema. Many threads may use one object at once. An object costs nothing until its first
call, which also checks once that the schema exists and that the logs belong to this database cluster.

The parts are small. They import the heavier modules, such as those of consumers, results and cron
expressions, on first use, because every Airflow task is a new process and waits for each import.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from duewheel.store.consuming.consumers import Consumers
from duewheel.store.consuming.doorbells import Doorbells
from duewheel.store.consuming.signals import Signals
from duewheel.store.consuming.taking_over import TakingOver
from duewheel.store.database.connected import CALL_TIMEOUT
from duewheel.store.operations.answering import Answering
from duewheel.store.operations.dead_letters import DeadLetters
from duewheel.store.operations.groups import Groups
from duewheel.store.operations.lookups import Lookups
from duewheel.store.operations.recalling import Recalling
from duewheel.store.operations.schedules import Schedules
from duewheel.store.operations.sending import Sending
from duewheel.store.operations.settings import Configuring
from duewheel.store.operations.topics import Topics
from duewheel.store.values.extras import extra
from duewheel.store.wheel.turning import Turning

if TYPE_CHECKING:
    from duewheel.store.database.rebasing import Rebased
    from duewheel.store.database.schema_state import SchemaState


class Broker(
    Topics,
    Sending,
    Recalling,
    Answering,
    Lookups,
    DeadLetters,
    Consumers,
    TakingOver,
    Groups,
    Doorbells,
    Schedules,
    Configuring,
    Turning,
):
    """A broker in a Postgres database.

    Args:
        dsn: libpq string or URL, also SQLAlchemy's ``postgresql+psycopg2://``.
        clock: gives the instant that every call takes for now, for tests; None is the database's clock.
        listen: whether waiting consumers and the wheel use LISTEN; give False with a pooler that shares
            sessions, such as PgBouncer by transaction.
        call_timeout: how long each statement of a call may wait for the server's answer. It also bounds a
            call that waits for another transaction's end.

    Raises:
        InvalidArgument: the dsn cannot be read, or ``call_timeout`` is not a span above zero. The first call
            shows whether the database can be used: it raises BrokerUnreachable, BrokerNotUpgraded or
            BrokerMoved.

    Example::

        with Broker("postgresql://shop@localhost/shop") as broker:
            broker.create_topic("orders.timeout")
            broker.send("orders.timeout", {"order": 4711}, delay=timedelta(minutes=30), key="4711")
    """

    def __init__(
        self,
        dsn: str,
        *,
        clock: Callable[[], datetime] | None = None,
        listen: bool = True,
        call_timeout: timedelta = CALL_TIMEOUT,
    ) -> None:
        super().__init__(dsn, clock=clock, listen=listen, call_timeout=call_timeout)
        self._signals = Signals(self.dsn, listen=listen)

    @classmethod
    @contextmanager
    def embedded(cls, directory: str | Path) -> Iterator[Self]:
        """A broker in an embedded Postgres server, started from a directory and upgraded.

        The server is shared by all processes that open the same directory and ends with the last of them.
        Needs the extra ``embedded``.

        Args:
            directory: where the database is stored; made if missing.

        Example::

            with Broker.embedded("var/duewheel") as broker:
                print(broker.dsn)
        """
        from duewheel.embedded.postgres import EmbeddedPostgres

        with EmbeddedPostgres(Path(directory)) as server, cls(server.ensure_database("duewheel")) as broker:
            broker.upgrade()
            yield broker

    def close(self) -> None:
        """Close the idle connections; a connection in use is closed when its call is done."""
        self._signals.close()
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def upgrade(self) -> SchemaState:
        """Make the schema, or bring it to this program's revision; any number of processes may do it at once.

        Raises:
            BrokerUnreachable: the server does not answer.
            NotAllowed: the user may not create a schema there, or another user owns it.
            ExtraMissing: the extra ``upgrade`` is not installed.
        """
        with extra("upgrade", "Broker.upgrade()"):
            from duewheel.store.database import migration

        return migration.upgrade(self.dsn)

    def check(self) -> SchemaState:
        """The state of the schema, if this program can work with it.

        Raises:
            BrokerNotUpgraded: the schema is missing or old, or its functions are not this program's.
            BrokerMoved: the database was restored into another cluster.
            BrokerUnreachable: the server does not answer.
        """
        from duewheel.store.database import schema_state

        return schema_state.check(self.dsn)

    def rebase(self) -> Rebased:
        """Take over a broker from a logical dump and restore, so that it runs in this cluster.

        Until then every call is refused with BrokerMoved. Afterwards each waiting message is delivered
        exactly once, and acked messages are not delivered again. Leases and receipt handles stay valid: a
        leased message is delivered again when its lease ends, unless it is answered before. The dump does not
        hold what the broker did after it was taken. If the broker was not moved, nothing changes, so a
        restore script may always call this. One transaction rewrites all message rows and keeps other callers
        out: about 10 s per million messages and, until vacuum has run, twice the space.

        A promoted standby and a point-in-time recovery are the same cluster and need no rebase.

        Returns:
            How many rows it rewrote.

        Raises:
            BrokerNotUpgraded: the schema is missing or older than this program.
            BrokerUnreachable: the server does not answer.

        Example::

            with Broker("postgresql://shop@new-host/shop") as broker:
                broker.rebase()
        """
        from duewheel.store.database import rebasing

        return rebasing.rebase(self.dsn)
