"""Pure. Jobs whose data never ends: what is coming, what workers can take, how many are needed, and for how long."""
