"""Epochs of the user's loop: `job.epochs`, plain loops, schedules, in this life of a worker and the ones before."""
