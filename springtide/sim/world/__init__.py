"""The simulated world: cluster, models and workloads."""
