"""Benchmarks of whole training loops, and their quality."""
