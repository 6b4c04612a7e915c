"""Platforms on which roles run. `agent` supervises a job; `local`, `ray_cluster` and `k8s` implement platforms.

`agent.platform_api` defines the interface of a platform.
"""
