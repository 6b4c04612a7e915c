"""What a user's machine does on Kubernetes: submit, install, logs."""
