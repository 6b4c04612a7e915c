"""Benchmarks of data workers: feeding, transfer, tuning."""
