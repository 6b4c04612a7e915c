"""Jobs on Kubernetes: a client of its API, the operator that makes pods, the agent that runs in a job's master pod."""
