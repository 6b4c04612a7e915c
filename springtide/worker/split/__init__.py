"""Runs the trainer's part of a split program."""
