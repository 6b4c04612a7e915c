"""Kubernetes for tests, without a cluster: an API server over HTTPS, and a kubelet that runs pods as local processes.

`server.ApiServer` keeps objects as a real server does (definitions with schemas, watches, versions, access rules), and
fails on purpose; `kubelet.LocalKubelet` runs pods of it, or of any real API server, on this machine. What they do and
do not: docs/design/kubernetes-testing.md.
"""
