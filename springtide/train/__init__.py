"""The worker: the user's loop, its batches, its steps. Start at session.py; then batches, step, optimizer."""
