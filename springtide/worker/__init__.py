"""The worker: runs the user's loop, its batches and its steps. Start at job.py; then batches, step, optimizer."""
