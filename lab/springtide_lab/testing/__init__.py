"""Run clusters and brokers on one machine, for benchmarks and tests."""
