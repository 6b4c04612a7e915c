"""Pure. Planning decides the resources of each job, and gives reasons. All functions take immutable data, read no clock
and do no I/O."""
