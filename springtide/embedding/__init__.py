"""PyTorch modules for tables that servers hold: lookups, gradients, and the client that reaches the servers."""
