"""Pure. What should be done about a job's resources, and why: functions over frozen data, no clock, no I/O."""
