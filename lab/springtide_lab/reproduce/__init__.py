"""Reproduce tables and figures of the five papers with this code."""
