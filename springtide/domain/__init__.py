"""Pure. Immutable value types of a job. The types of this package do no I/O, read no clock and do not import torch. All
other packages may import the types.
"""
