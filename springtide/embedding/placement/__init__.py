"""Pure. Which server holds which slot, with the fewest moves."""
