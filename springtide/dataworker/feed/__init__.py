"""Delivers batches from data workers to trainers: dispatch, connections, and the data worker's loop."""
