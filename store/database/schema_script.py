"""The schema as one SQL script, for databases whose owner runs no Python."""

from __future__ import annotations

import re

from duewheel.store import sql
from duewheel.store.database.schema import MIGRATIONS, SCHEMA, VERSION_TABLE, newest_revision
from duewheel.store.database.schema_state import functions_checksum


def schema_script() -> str:
    """Return the statements that make the schema in a database that lacks it.

    The script leaves the database as :func:`duewheel.store.database.migration.upgrade` leaves it, so later
    versions upgrade it in the same way. It fails, and changes nothing, if the schema exists.

    Returns:
        A script for psql or any other client that sends statements one by one. The first transaction makes
        the schema, the two after it open the slots of the next days.

    Example:
        >>> schema_script().splitlines()[0]
        'begin;'
    """
    return "\n".join(
        [
            "begin;",
            "set local search_path = pg_catalog, pg_temp;",
            f"create schema {SCHEMA};",
            *_tables(),
            f"create table {SCHEMA}.{VERSION_TABLE} (",
            f"    version_num varchar(32) not null constraint {VERSION_TABLE}_pkc primary key",
            ");",
            f"insert into {SCHEMA}.{VERSION_TABLE} values ('{newest_revision()}');",
            *map(sql.text_of, sql.files()),
            sql.entry_points(),
            f"update {SCHEMA}.broker set functions_checksum = '{functions_checksum()}';",
            f"select {SCHEMA}.grant_rights();",
            f"select {SCHEMA}.make_slots_ahead(clock_timestamp());",
            "commit;",
            # Once when all sessions see the slots, and again once all were notified of them.
            *[f"select {SCHEMA}.open_slots();"] * 2,
        ]
    )


def _tables() -> list[str]:
    versions = (MIGRATIONS / "versions").iterdir()
    return [
        file.read_text("utf-8")
        for folder in sorted(versions, key=lambda entry: entry.name)
        if re.fullmatch("v[0-9]+", folder.name)
        for file in sorted(folder.iterdir(), key=lambda entry: entry.name)
        if file.name.endswith(".sql")
    ]
