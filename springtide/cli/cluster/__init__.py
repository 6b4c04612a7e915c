"""Commands for clusters: `k8s`, `brain`."""
