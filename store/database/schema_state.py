"""The schema that a database has, down to its functions, and whether this program can work with it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from duewheel.store import sql
from duewheel.store.database.connections import Database, DriverConnection, fetch
from duewheel.store.database.schema import SCHEMA, VERSION_TABLE, newest_revision, verify
from duewheel.store.values.errors import BrokerNotUpgraded


@dataclass(frozen=True, slots=True)
class SchemaState:
    """The schema that a database has.

    Attributes:
        revision: the revision its tables are at.
        functions_checksum: the checksum of the function files that were applied last.
    """

    revision: str
    functions_checksum: str


def check(dsn: str) -> SchemaState:
    """The schema of a database that this program can use; see :meth:`duewheel.store.broker.Broker.check`."""
    connection = Database(dsn).connect()
    try:
        verify(connection)
        state = state_of(connection)
    finally:
        connection.close()
    if state.revision == newest_revision() and state.functions_checksum != functions_checksum():
        raise BrokerNotUpgraded(
            "the functions in the database are not those of this program: run `duewheel db upgrade`"
        )
    return state


def functions_checksum() -> str:
    """The checksum of this program's function files."""
    digest = hashlib.sha256()
    for name in sql.files():
        digest.update(f"{name}\0{sql.text_of(name)}\0".encode())
    return digest.hexdigest()


def state_of(connection: DriverConnection) -> SchemaState:
    """Read the state from a database whose schema is there."""
    statement = (
        f"select v.version_num, b.functions_checksum from {SCHEMA}.{VERSION_TABLE} v, {SCHEMA}.broker b"
    )
    return SchemaState(*fetch(connection, statement, ())[0])
