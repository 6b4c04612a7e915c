"""Embedding rows in device memory: arenas and the kernels that read, reduce and train them."""
