"""Alembic environment of the migrations. In: an open connection of `brain.store.migrate`, within its transaction."""

from alembic import context

from springtide.brain.store import schema

context.configure(connection=context.config.attributes["connection"], target_metadata=schema.metadata)
context.run_migrations()
