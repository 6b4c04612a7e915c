"""Reads a job spec, resolves it, submits it to a platform, and finds the job again."""
