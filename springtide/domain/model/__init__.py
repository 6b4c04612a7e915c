"""Pure. Tables, model outline, cache rules, checkpoints."""
