"""Pure. Events, actions and node states."""
