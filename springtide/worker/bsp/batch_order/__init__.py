"""Sum the gradients of a bsp step in batch order, for any assignment of samples to ranks:
docs/design/batch-order.md.
"""
