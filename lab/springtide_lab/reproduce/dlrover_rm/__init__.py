"""Reproduce DLRover-RM and DLRover with simulated clusters."""
