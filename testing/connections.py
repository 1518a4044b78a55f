"""A database as a connection of Airflow."""

from __future__ import annotations

import json

from psycopg2.extensions import parse_dsn


def connection_json(dsn: str, *, conn_type: str = "duewheel", **extras: object) -> str:
    """A database as a connection, in the JSON that Airflow reads from ``AIRFLOW_CONN_...``.

    Args:
        dsn: the database's address.
        conn_type: the connection's type, such as ``postgres``.
        extras: of the connection.
    """
    parts = parse_dsn(dsn)
    return json.dumps(
        {
            "conn_type": conn_type,
            "host": parts.get("host"),
            "port": int(parts["port"]) if "port" in parts else None,
            "schema": parts["dbname"],
            "login": parts.get("user"),
            "password": parts.get("password"),
            "extra": json.dumps(extras),
        }
    )
