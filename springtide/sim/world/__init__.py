"""The simulated world: machines, models, workloads."""
