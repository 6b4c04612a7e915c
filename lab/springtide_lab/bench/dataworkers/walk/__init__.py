"""Tuning the data workers of one job, with real processes held to fractions of a core; `bench dataworkers-walk`."""
