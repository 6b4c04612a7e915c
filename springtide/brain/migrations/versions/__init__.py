"""Alembic migration scripts, one file per version."""
