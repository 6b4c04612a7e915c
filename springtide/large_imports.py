"""Imports large modules without garbage collection, which takes a fifth of the time of `import torch`."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Collect no garbage while the block imports modules.

    The garbage collector skips the objects of these modules from now on, also at the end of the process. torch alone
    creates 200,000 objects that live as long as the process.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
