"""Asks the planner and carries its plans out. Decision walk: profiler.py, then planning, then loop.py."""
