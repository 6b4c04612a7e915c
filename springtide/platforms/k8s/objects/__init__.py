"""Kubernetes objects that Springtide creates."""
