"""Jobs on a Kubernetes cluster: what is asked of its API, by whom, and what comes back.

Pure rooms say what objects look like (`names`, `crds`, `pods`, `objects`, `manifests`); `client` talks to the API; the
`operator` makes pods of what masters want. Imported only when asked for: `pip install 'springtide[k8s]'`.
"""
