"""Epochs of the user's loop: `job.epochs`, plain loops and schedules, across restarts of a worker."""
