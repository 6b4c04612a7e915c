"""Decision inputs of the brain: cluster state, triggers and algorithms."""
