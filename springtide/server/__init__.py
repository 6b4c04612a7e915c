"""The parameter server process: slots, migration, checkpoints, mirrors, restore. Sample walk: the last stop."""
