"""Shared parts of all benchmarks: alternating rounds, the machine's state, reports, peers."""
