"""Pure. What a planner sees and what it answers."""
