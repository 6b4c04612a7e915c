"""Pure. Assign slots to servers with few moves."""
