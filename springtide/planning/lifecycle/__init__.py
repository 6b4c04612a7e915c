"""Pure. Planning stages of a job: warm start, sample, optimize, adjust."""
