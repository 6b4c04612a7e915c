"""First schema version: past jobs and live jobs.

This script defines its own tables, so that later changes of `brain.store.schema` do not change it.
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "past_jobs",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("outcome", sa.Text, nullable=False),
        sa.Column("ended_at", sa.Double, nullable=False),
        sa.Column("throughput", sa.Double),
        sa.Column("features", sa.Text),
        sa.Column("initial", sa.Text),
        sa.Column("shape", sa.Text),
        sa.Column("need", sa.Text),
        sa.Column("facts", sa.Text),
        sa.UniqueConstraint("name", "ended_at", name="past_jobs_once"),
    )
    op.create_index("ix_past_jobs_ended_at", "past_jobs", ["ended_at"])
    op.create_table(
        "live_jobs",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("seen_at", sa.Double, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("stage", sa.Text, nullable=False),
        sa.Column("shape", sa.Text),
        sa.Column("pledge", sa.LargeBinary),
        sa.Column("view", sa.LargeBinary, nullable=False),
    )
