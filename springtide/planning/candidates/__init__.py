"""Pure. Candidate shapes of a job, and their Pareto front."""
