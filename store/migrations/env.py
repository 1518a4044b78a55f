"""How Alembic reaches the database: on the connection, and in the transaction, that ``migration.upgrade``
opened.

Alembic's own command line cannot run it: a revision is incomplete without the functions that
``migration.upgrade`` applies after it in the same transaction.
"""

from __future__ import annotations

from alembic import context

from duewheel.store.database.schema import SCHEMA, VERSION_TABLE

connection = context.config.attributes.get("connection")
if connection is None:
    raise RuntimeError("run `duewheel db upgrade`: it calls Alembic with the connection to work on")

context.configure(connection=connection, version_table=VERSION_TABLE, version_table_schema=SCHEMA)
with context.begin_transaction():
    context.run_migrations()
