"""Pure. Planning: decides the resources of each job and gives reasons. The functions take immutable data, and use no
clock and no I/O."""
