"""Tables of the brain's database: past jobs and live jobs. `migrations/versions` creates them.

Next: `brain.store.store` reads and writes the tables, `brain.store.rows` converts rows. Fields that queries filter by
have their own column. The other fields are JSON, so that a new field needs no migration.
"""

import sqlalchemy as sa

HEAD = "0001"
"""Newest schema version that this code knows: the last file under `migrations/versions`."""

metadata = sa.MetaData()

past_jobs = sa.Table(
    "past_jobs",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("outcome", sa.Text, nullable=False),
    sa.Column("ended_at", sa.Double, nullable=False, index=True),
    sa.Column("throughput", sa.Double),
    sa.Column("features", sa.Text),
    sa.Column("initial", sa.Text),
    sa.Column("shape", sa.Text),
    sa.Column("need", sa.Text),
    sa.Column("facts", sa.Text),
    sa.UniqueConstraint("name", "ended_at", name="past_jobs_once"),
)
"""Finished jobs. A job that is reported twice, after a lost reply, is stored once."""

live_jobs = sa.Table(
    "live_jobs",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("seen_at", sa.Double, nullable=False),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("stage", sa.Text, nullable=False),
    sa.Column("shape", sa.Text),
    sa.Column("pledge", sa.LargeBinary),
    sa.Column("view", sa.LargeBinary, nullable=False),
)
"""Running jobs, for a restarted brain: the resources that each job holds and the plan that it was promised."""
