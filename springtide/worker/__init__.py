"""Runs the user's loop in a worker process. Read job.py first, and then batches, step and optimizer."""
