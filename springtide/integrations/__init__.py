"""Strategies that run the training loops of other frameworks in a job."""
