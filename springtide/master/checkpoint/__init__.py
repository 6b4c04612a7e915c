"""Checkpoint rounds: when, by whom, complete or not, uploaded."""
