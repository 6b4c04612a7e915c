"""Simulate a full disk for this process by limiting the size of its files."""

import contextlib
import resource


@contextlib.contextmanager
def no_file_longer_than(size):
    """As if the disk were full beyond that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
