"""Files of a checkpoint: segments, manifests, storage. Start at manifest.py."""
