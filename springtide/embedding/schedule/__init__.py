"""Assign samples to workers, and plan the rows that each worker's cache sends and keeps."""
