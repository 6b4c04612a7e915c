"""Benchmarks of recovery, scaling, slow servers and checkpoints."""
