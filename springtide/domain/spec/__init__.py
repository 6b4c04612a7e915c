"""Pure. Specification of a job, and its settings."""
