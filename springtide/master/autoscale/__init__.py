"""Asks the planner for plans, and carries them out. Read profiler.py first, then planning, then loop.py."""
