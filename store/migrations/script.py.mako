"""${message}."""

from __future__ import annotations

from pathlib import Path

from alembic import op

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = ${repr(branch_labels)}
depends_on = ${repr(depends_on)}


def upgrade() -> None:
    """Run the frozen SQL files of this version in the order of their names."""
    for path in sorted((Path(__file__).parent / "v${up_revision}").glob("*.sql")):
        op.get_bind().exec_driver_sql(path.read_text(encoding="utf-8"))
