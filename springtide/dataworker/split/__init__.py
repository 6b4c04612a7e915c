"""Finds the part of `forward()` that data workers can run, and replays its results in the trainer."""
