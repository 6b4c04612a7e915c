"""Checkpoints: slot images in segment files, and a manifest that lists the images of one checkpoint.

`format.checkpoint_io` writes images, publishes manifests and finds the newest manifest. `format.manifest` combines the
reports of all servers. `format.storage` is a folder or an fsspec URL. Programs without tables use `checkpointer`.
"""

from springtide import lazy_names

_HOME = {
    name: "springtide.checkpoint.checkpointer.checkpointer" for name in ("Checkpointer", "Loaded", "Outcome", "Save")
}

__all__ = ["Checkpointer", "Loaded", "Outcome", "Save"]

__getattr__ = lazy_names.importer(__name__, _HOME)
