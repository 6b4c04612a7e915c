"""Pure. Planning: decides the resources of each job and gives reasons. Functions over immutable data, without clock and
I/O."""
