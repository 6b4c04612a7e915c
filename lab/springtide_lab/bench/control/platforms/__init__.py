"""One job on local processes, Ray and Kubernetes, side by side."""
