"""Records of a job: its event log as lines of JSON, and one log file for each role."""
