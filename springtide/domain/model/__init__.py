"""Pure. Tables, the outline of a model, cache rules, checkpoints."""
