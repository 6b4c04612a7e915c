"""Reproduce Herald: defaults and streams, counts of rows, times from measured costs."""
