"""Pure. Assign slots to servers with the fewest moves."""
