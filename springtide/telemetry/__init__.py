"""What a job leaves behind: one story of events as JSON lines, one log file a role."""
