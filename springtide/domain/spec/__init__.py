"""Pure. The job spec and its rules."""
