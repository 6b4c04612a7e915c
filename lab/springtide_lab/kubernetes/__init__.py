"""Run Kubernetes without a cluster: an API server over HTTPS, and a kubelet whose pods are processes of this machine.

`api.server.ApiServer` stores objects as a real server does, and can inject faults. `kubelet.kubelet.LocalKubelet` runs
the pods of this server or of any real API server. Limits: docs/design/kubernetes-testing.md.
"""
