"""Kubernetes operations of a job's master pod: plans, status, lease."""
