"""Agent of a job in its Kubernetes master pod."""
