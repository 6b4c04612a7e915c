"""Benchmarks of the control plane: master, planner, autoscaling."""
