"""The worker: the user's loop, its batches, its steps. Start at job.py; then batches, step, optimizer."""
