"""Tables that live elsewhere, as PyTorch modules: lookups, gradients, and the client that reaches the servers."""
