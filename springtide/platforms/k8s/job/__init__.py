"""What a job's master pod does on Kubernetes: plans, status, lease."""
