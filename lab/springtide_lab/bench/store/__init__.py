"""Benchmarks of tables and of the wire protocol."""
