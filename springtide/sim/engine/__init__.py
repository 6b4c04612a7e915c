"""The simulation: events, jobs, faults, policies under test."""
