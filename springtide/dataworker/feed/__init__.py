"""Deliver batches from data workers to trainers: dispatch, connections, the worker's loop."""
