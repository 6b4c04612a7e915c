"""A kubelet that runs pods as processes of this machine."""
