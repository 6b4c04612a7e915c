"""The worker: runs the user's loop, its batches and its steps. Read job.py first, and then batches, step and
optimizer."""
