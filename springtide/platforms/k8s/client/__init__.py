"""Kubernetes operations of a user's machine: submit, install, logs."""
