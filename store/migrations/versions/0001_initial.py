"""The tables of the broker."""

from __future__ import annotations

from pathlib import Path

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Run the frozen SQL files of this version in the order of their names."""
    for path in sorted((Path(__file__).parent / "v0001").glob("*.sql")):
        op.get_bind().exec_driver_sql(path.read_text(encoding="utf-8"))
