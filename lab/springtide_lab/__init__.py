"""What we measure Springtide with: benchmarks, paper reproductions, and a small Kubernetes for tests."""
