"""Tables of the brain's database: jobs of the past, and jobs that live. `migrations/versions` makes them.

In: nothing. Next: `brain.store.store` reads and writes them, `brain.store.rows` turns a row into a noun and back. What
a row is looked for by has its own column; the rest is JSON, so that a noun with one more field needs no migration.
"""

import sqlalchemy as sa

HEAD = "0001"
"""The newest version that this code knows: the last one under `migrations/versions`."""

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
"""A job that is told twice, because an answer was lost, is kept once."""

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
"""What a brain that is started again must know at once: who holds what, and what was promised to whom."""
