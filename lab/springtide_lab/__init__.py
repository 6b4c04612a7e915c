"""Measure Springtide: benchmarks, paper reproductions, and a small Kubernetes for tests."""
