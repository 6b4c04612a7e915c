"""Pure. Immutable value types of a job. These types do no I/O, read no clock and do not import torch. All other
packages may import them."""
