"""Gradients of a bsp step summed in the order of the batch, whoever trains which sample: docs/design/batch-order.md."""
