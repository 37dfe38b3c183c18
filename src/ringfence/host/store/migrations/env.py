"""What Alembic runs to migrate. Loaded by Alembic, imported by nobody; takes the connection that migrate.py hands it."""

from __future__ import annotations

from alembic import context

from ringfence.host.store.migrate import EXPANDED_TABLE

context.configure(
    connection=context.config.attributes["connection"], version_table=EXPANDED_TABLE, transactional_ddl=True
)
with context.begin_transaction():
    context.run_migrations()
