"""Pure. Stages of a job: warm start, sample, optimize, adjust."""
