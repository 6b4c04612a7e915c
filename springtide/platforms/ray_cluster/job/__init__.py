"""A job on Ray: steward, role actors, placement."""
