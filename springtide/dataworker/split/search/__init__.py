"""Chooses the cut, makes the split, and reports it."""
