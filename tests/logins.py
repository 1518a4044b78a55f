"""Logins: those that have one of the broker's roles and nothing else, and that of the tests' brokers.

DUEWHEEL_TEST_LOGIN says whose rights the brokers of the tests have:

- not set: a superuser's, who also owns the database
- ``owner``: of one who owns the database, is no superuser and may make no roles, as managed services have it
- ``roles``: of one who has the four roles; and, for tests, may set the clock, as the owner may
"""

from __future__ import annotations

import logging
import os
import re
from contextlib import closing

import psycopg2
from psycopg2.extensions import make_dsn
from tests.waiting import ask, connected

ROLES = ("duewheel_answerer", "duewheel_producer", "duewheel_consumer", "duewheel_admin")
PASSWORD = "of-a-test"
SUPERUSER = "postgres"
OWNER = "shop_owner"
EVERYBODY = "shop_program"

#: Whose rights the brokers of the tests have.
TEST_LOGIN = os.environ.get("DUEWHEEL_TEST_LOGIN", "superuser")
#: Who owns the tests' databases, and who the tests' brokers are.
OWNING, TURNING = {"superuser": (SUPERUSER, SUPERUSER), "owner": (OWNER, OWNER), "roles": (OWNER, EVERYBODY)}[
    TEST_LOGIN
]


def as_user(dsn: str, user: str) -> str:
    """The same address for another of the users above, all of whom have the superuser's password."""
    return re.sub(r"(?<=//)\w+", user, dsn, count=1) if "://" in dsn else make_dsn(dsn, user=user)


def make_owner(dsn: str) -> None:
    """Makes the login that owns the tests' databases.

    Args:
        dsn: the superuser's address of any database of the server.
    """
    with connected(dsn) as connection:
        password = connection.info.password or PASSWORD
        ask(
            connection, f"create role {OWNER} login nosuperuser nocreatedb nocreaterole password %s", password
        )


def upgrade_as_owner(dsn: str) -> None:
    """Upgrades as the owner, and does as an administrator what the upgrade asks for.

    Args:
        dsn: the superuser's address of the database.
    """
    from duewheel.store.database import migration

    asked: list[str] = []
    hears = logging.Handler(logging.WARNING)
    hears.emit = lambda record: asked.append(record.getMessage())  # type: ignore[method-assign]
    migration.log.addHandler(hears)
    migration.upgrade(as_user(dsn, OWNER))
    migration.log.removeHandler(hears)
    statements = re.findall(r"(?:create role|grant) [^;]*?(?= and then upgrade|;)", "".join(asked))
    with connected(dsn) as connection:
        for statement in statements:
            ask(connection, statement)
    migration.upgrade(as_user(dsn, OWNER))


def make_everybody(dsn: str) -> None:
    """Makes the login that has the four roles, all rights in the schema of the shop, and may set the clock.

    A member of the owner may set it. This one does not inherit the owner's other rights.

    Args:
        dsn: the superuser's address of the database.
    """
    with connected(dsn) as connection:
        password = connection.info.password or PASSWORD
        ask(connection, f"create role {EVERYBODY} login password %s", password)
        ask(connection, f"grant {', '.join(ROLES)} to {EVERYBODY}")
        ask(connection, "create role shop_clock noinherit")
        ask(connection, f"grant {OWNER} to shop_clock")
        ask(connection, f"grant shop_clock to {EVERYBODY}")
        ask(connection, f"grant create on schema public to {EVERYBODY}")
        ask(connection, f"grant temporary on database {connection.info.dbname} to {EVERYBODY}")
        made = f"alter default privileges for role {OWNER} in schema public grant all"
        ask(connection, f"{made} on tables to {EVERYBODY}")
        ask(connection, f"{made} on sequences to {EVERYBODY}")


def login(dsn: str, role: str | None) -> str:
    """The address of the same database for a login that is a member of a role; made if missing.

    Args:
        dsn: an address of the database.
        role: one of ``ROLES``; None for a login without any.
    """
    user = f"{role or 'nobody'}_login"
    with closing(psycopg2.connect(as_user(dsn, SUPERUSER))) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute("select 1 from pg_roles where rolname = %s", (user,))
            if cursor.fetchone() is None:
                cursor.execute(f"create role {user} login password '{PASSWORD}'")
                if role is not None:
                    cursor.execute(f"grant {role} to {user}")
    return make_dsn(dsn, user=user, password=PASSWORD)
