"""Pure. Guards, which react without waiting for a plan: memory, hot servers, growth."""
