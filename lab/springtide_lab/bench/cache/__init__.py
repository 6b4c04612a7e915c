"""Benchmarks of the row cache and its scheduler, counted and timed."""
