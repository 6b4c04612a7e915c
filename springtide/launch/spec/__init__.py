"""Reads and resolves job specs."""
