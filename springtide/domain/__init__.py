"""Pure. Immutable value types of a job. They do no I/O, read no clock and do not import torch. Every layer above may
import them."""
