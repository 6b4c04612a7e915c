"""Runs jobs on a Kubernetes cluster.

`api` talks to the API server. `objects` builds objects and is pure. `operator` creates the pods that masters want.
`job` runs in a master pod. `client` serves command lines. Needs `pip install 'springtide[k8s]'`.
"""
