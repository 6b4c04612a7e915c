"""Pure. How many workers an online job should have."""
