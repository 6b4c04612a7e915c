"""Data worker processes: start, supervise, package the user's code."""
