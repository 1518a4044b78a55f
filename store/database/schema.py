"""The schema this program needs, and whether a database has it.

A revision is a number with leading zeros, the name of a file in ``migrations/versions``. A database may be
newer than the program: migrations keep what older programs use, so that workers can be upgraded one after
another.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

import psycopg2

from duewheel.store.database.connections import DriverConnection, cursor_of, explanation
from duewheel.store.values.errors import BrokerMoved, not_upgraded

MIGRATIONS = resources.files("duewheel.store") / "migrations"
VERSION_TABLE = "alembic_version"
SCHEMA = "duewheel"

_STATE = f"""
select v.version_num, b.system_identifier = c.system_identifier
from {SCHEMA}.{VERSION_TABLE} v, {SCHEMA}.broker b, pg_control_system() c
"""

# undefined schema, undefined table
_MISSING = frozenset({"3F000", "42P01"})


@cache
def newest_revision() -> str:
    """The revision this program needs: the highest number among its migrations."""
    versions = (MIGRATIONS / "versions").iterdir()
    return max(path.name.split("_")[0] for path in versions if re.match(r"[0-9]+_.*\.py$", path.name))


def verify(connection: DriverConnection) -> None:
    """Refuse a database that this program cannot work with; one round trip.

    Raises:
        BrokerNotUpgraded: the schema is missing or older than this program.
        BrokerMoved: the database was restored into another cluster, where its logs are not valid yet.
    """
    if not check_revision(connection):
        raise BrokerMoved(
            "this database was restored into another cluster, where the transaction ids in its logs "
            "mean something else: run `duewheel db rebase` (or call Broker.rebase()) once; then every "
            "waiting message is delivered exactly once"
        )


def refuse_other_revision(connection: DriverConnection) -> None:
    """Refuse a schema of another revision, after a statement named something that the schema does not have.

    A schema that was verified may have been replaced since, by that of a backup or of a newer program.

    Raises:
        BrokerNotUpgraded: the schema is missing, older or newer than this program.
    """
    revision, _ = _state(connection)
    if revision != newest_revision():
        raise not_upgraded(revision, newest_revision())


def check_revision(connection: DriverConnection) -> bool:
    """Whether the logs belong to this cluster, of a database whose schema this program can work with.

    Raises:
        BrokerNotUpgraded: the schema is missing or older than this program.
    """
    revision, at_home = _state(connection)
    if revision < newest_revision():
        raise not_upgraded(revision, newest_revision())
    return at_home


def _state(connection: DriverConnection) -> tuple[str, bool]:
    """The revision of the schema, and whether its logs belong to this cluster."""
    try:
        with cursor_of(connection) as cursor:
            cursor.execute(_STATE)
            rows = cursor.fetchall()
    except psycopg2.Error as error:
        if error.pgcode in _MISSING:
            raise not_upgraded(None, newest_revision()) from error
        ours = explanation(connection, error)
        if ours is None:
            raise
        raise ours from error
    if not rows:
        raise not_upgraded(None, newest_revision())
    revision: str = rows[0][0]
    at_home: bool = rows[0][1]
    return revision, at_home
