"""What checkpoints cost: the caller of `Checkpointer.save`. Each part is measured in a room of its own.

In: nothing but the options. Out: the goals and rows of all parts. Next: checkpoint_blocking.py.
"""

from springtide.bench import Options, checkpoint_blocking, report


def bench(options: Options) -> report.Result:
    """All parts, one after the other."""
    return checkpoint_blocking.blocking(options)
