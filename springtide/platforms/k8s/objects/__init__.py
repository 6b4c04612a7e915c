"""Kubernetes objects that Springtide makes."""
