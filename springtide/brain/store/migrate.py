"""Migrates a database to the schema of this code, and refuses a newer schema.

In: an engine of `brain.store.store`. Out: nothing; the tables exist. The Alembic scripts are in `brain/migrations`.
Alembic is imported only for a migration, because the import is slow.
"""

import importlib.resources

import sqlalchemy as sa

from springtide import errors
from springtide.brain.store import schema

VERSION_TABLE = "alembic_version"
LOCK = 0x5B7A12  # arbitrary but fixed: PostgreSQL's advisory lock for migrations


def bring_up(engine: sa.Engine, *, where: str) -> None:
    """Create or migrate the tables. Processes that open a new database at the same time take turns."""
    with engine.begin() as connection:  # on SQLite this takes the write lock
        if engine.dialect.name == "postgresql":
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(LOCK)))
        version = current(connection)
        if version == schema.HEAD:
            return
        _upgrade(connection, version, where)


def current(connection: sa.Connection) -> str | None:
    """Return the schema version of a database; None if it is empty."""
    if not sa.inspect(connection).has_table(VERSION_TABLE):
        return None
    found: str | None = connection.execute(sa.text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()
    return found


def _upgrade(connection: sa.Connection, version: str | None, where: str) -> None:
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(importlib.resources.files("springtide.brain") / "migrations"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if version is not None and version not in known:
        raise errors.BadInput(
            f"the history at {where} is of version {version!r}, which this Springtide does not know (its own is "
            f"{schema.HEAD!r}): it was written by a newer one. Update Springtide, or give another database."
        )
    command.upgrade(config, "head")
