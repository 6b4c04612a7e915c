"""One file a version; Alembic reads them."""
