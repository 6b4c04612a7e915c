"""Event simulation: clock, jobs, faults, and the systems under test."""
