"""PyTorch modules for tables that servers hold: lookups, gradients, and the client that connects to the servers."""
