"""Data workers: processes that run the stateless part of a user's program and send batches to trainers."""
