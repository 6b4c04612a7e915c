"""Pure. The traffic to come."""
