"""Where roles run: `agent` supervises a job on a platform; `local`, `ray_cluster` and `k8s` implement platforms.

`agent.platform_api` says what a platform must offer.
"""
