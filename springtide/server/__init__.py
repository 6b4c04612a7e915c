"""The parameter server process: slots, migration, checkpoints, mirrors, restore. Sample walk: its last stop."""
