"""Records of a job: its event log as JSON lines, and one log file for each role."""
