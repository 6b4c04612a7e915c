"""Alembic migrations of the brain's database, oldest first, under `versions`; `brain.store.migrate` applies them."""
