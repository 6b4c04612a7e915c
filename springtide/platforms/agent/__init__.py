"""Code that all platforms share: the agent, the launch of roles, and reconciliation."""
