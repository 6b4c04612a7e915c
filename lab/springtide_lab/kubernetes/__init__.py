"""Kubernetes without a cluster: an API server over HTTPS, and a kubelet that runs pods as processes of this machine.

`api.server.ApiServer` keeps objects as a real server does, and fails on purpose; `kubelet.kubelet.LocalKubelet` runs
pods of it, or of any real API server. Limits: docs/design/kubernetes-testing.md.
"""
