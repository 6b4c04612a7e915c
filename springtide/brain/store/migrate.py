"""Bring a database up to this code's version, or refuse one of a newer code.

In: an engine of `brain.store.store`. Out: nothing; the tables are there. Alembic's scripts lie in `brain/migrations`;
Alembic itself is imported only when there is something to do, as that takes longer than all the rest.
"""

import importlib.resources

import sqlalchemy as sa

from springtide import errors
from springtide.brain.store import schema

VERSION_TABLE = "alembic_version"
LOCK = 0x5B7A12  # any number, the same in all of us: PostgreSQL's advisory lock of whoever migrates


def bring_up(engine: sa.Engine, *, where: str) -> None:
    """Make or change the tables. Two processes that open a new database at once take turns."""
    with engine.begin() as connection:  # on SQLite this is the write lock
        if engine.dialect.name == "postgresql":
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(LOCK)))
        version = current(connection)
        if version == schema.HEAD:
            return
        _upgrade(connection, version, where)


def current(connection: sa.Connection) -> str | None:
    """The version of a database; None: it is empty."""
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
