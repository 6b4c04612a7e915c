"""Tables of the brain's database: past jobs, live jobs and the version of this schema.

Fields that queries filter by have their own column. The rest is JSON, so that a new field changes no table.
"""

import sqlalchemy as sa

from springtide import errors

VERSION = 1
"""Version of these tables. Raise it when a table changes, and convert older databases in `create`."""
LOCK = 0x5B7A12  # arbitrary but fixed: PostgreSQL's advisory lock for creating tables

metadata = sa.MetaData()

versions = sa.Table("schema_version", metadata, sa.Column("version", sa.Integer, primary_key=True))

past_jobs = sa.Table(
    "past_jobs",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("ended_at", sa.Double, nullable=False, index=True),
    sa.Column("job", sa.Text, nullable=False),
    sa.UniqueConstraint("name", "ended_at", name="past_jobs_once"),
)
"""Finished jobs; `job` is JSON. A job that is reported twice, after a lost reply, is stored once."""

live_jobs = sa.Table(
    "live_jobs",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("seen_at", sa.Double, nullable=False),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("pledge", sa.LargeBinary),
    sa.Column("view", sa.LargeBinary, nullable=False),
)
"""Running jobs, for a restarted brain: the resources that each job holds and the plan that it was promised."""


def create(engine: sa.Engine, *, where: str) -> None:
    """Create missing tables. Processes that open a new database at the same time take turns."""
    with engine.begin() as connection:  # on SQLite this takes the write lock
        if engine.dialect.name == "postgresql":
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(LOCK)))
        metadata.create_all(connection)
        version = connection.execute(sa.select(sa.func.max(versions.c.version))).scalar()
        if version is None:
            connection.execute(sa.insert(versions).values(version=VERSION))
        elif version != VERSION:
            raise errors.BadInput(
                f"the history at {where} is of version {version}, this Springtide reads version {VERSION}: it was "
                "written by another one. Use the Springtide that wrote it, or give another database."
            )
