"""A job's agent in its Kubernetes pod."""
