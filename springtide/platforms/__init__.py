"""Platforms that run roles: `agent` supervises a job, and `local`, `ray_cluster` and `k8s` implement platforms.

`agent.platform_api` defines the interface of a platform.
"""
