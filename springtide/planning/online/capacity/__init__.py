"""Pure. How many samples a second so many workers train."""
