"""Client of the Kubernetes API."""
