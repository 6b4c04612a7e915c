"""Checkpoints of jobs, and `Checkpointer` for the state of any PyTorch program.

A job's checkpoint has slot images in segment files, and a manifest that lists the images. `format.checkpoint_io`
writes images, publishes manifests and finds the newest manifest. `format.manifest` combines the reports of all
servers. `format.storage` accesses files in a folder or at an fsspec URL. Programs without tables use `checkpointer`.
"""

from springtide import lazy_names

_HOME = {
    "Checkpointer": "springtide.checkpoint.checkpointer.checkpointer",
    "Loaded": "springtide.checkpoint.checkpointer.checkpointer",
    "Outcome": "springtide.checkpoint.checkpointer.saver",
    "Save": "springtide.checkpoint.checkpointer.saver",
}

__all__ = ["Checkpointer", "Loaded", "Outcome", "Save"]

__getattr__ = lazy_names.importer(__name__, _HOME)
