"""Login roles that have one of the broker's roles and nothing else."""

from __future__ import annotations

from contextlib import closing

import psycopg2
from psycopg2.extensions import make_dsn

ROLES = ("duewheel_producer", "duewheel_consumer", "duewheel_admin")
PASSWORD = "of-a-test"


def login(dsn: str, role: str | None) -> str:
    """The address of the same database for a login that is a member of a role; made if missing.

    Args:
        dsn: the address for a superuser.
        role: one of ``ROLES``; None for a login without any.
    """
    user = f"{role or 'nobody'}_login"
    with closing(psycopg2.connect(dsn)) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute("select 1 from pg_roles where rolname = %s", (user,))
            if cursor.fetchone() is None:
                cursor.execute(f"create role {user} login password '{PASSWORD}'")
                if role is not None:
                    cursor.execute(f"grant {role} to {user}")
    return make_dsn(dsn, user=user, password=PASSWORD)
