"""Asks the planner for plans and carries them out. Reading order: profiler.py, then planning, then loop.py."""
