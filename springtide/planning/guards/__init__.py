"""Pure. Reactions that do not wait for a plan: memory, hot servers, growth."""
