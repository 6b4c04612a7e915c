"""Benchmarks of streams and online training."""
