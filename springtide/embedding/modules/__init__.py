"""Embedding modules that a user's model contains, and their conversion."""
