"""Slots of several levels, and what the logs need beside them."""

from __future__ import annotations

from pathlib import Path

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Run the frozen SQL files of this version in the order of their names."""
    for path in sorted((Path(__file__).parent / "v0002").glob("*.sql")):
        op.get_bind().exec_driver_sql(path.read_text(encoding="utf-8"))
