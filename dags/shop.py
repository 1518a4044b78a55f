"""Names and SQL statements (`dags/sql`) that the DAGs of the shop share."""

from __future__ import annotations

from pathlib import Path

TOPIC = "order-timeout"
GROUP = "cancel-unpaid-orders"


def statement(name: str) -> str:
    """Return the SQL of `dags/sql/NAME.sql`."""
    return (Path(__file__).parent / "sql" / f"{name}.sql").read_text(encoding="utf-8")
