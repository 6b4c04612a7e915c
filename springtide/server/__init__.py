"""The parameter server process: slots, migration, checkpoints, mirrors, restore. On the path of a sample, it is the
last stop."""
