"""Checkpoint rounds: schedule, participants, completeness and uploads."""
