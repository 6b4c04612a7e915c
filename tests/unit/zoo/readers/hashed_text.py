"""The hash of one text."""

import numpy as np

from springtide.zoo.readers import cells


def hash_text(text):
    raw = text.encode() if isinstance(text, str) else text
    buffer = np.frombuffer(raw + bytes(cells.PADDING), dtype=np.uint8)
    return int(cells.hash_cells(buffer, np.array([0]), np.array([len(raw)]))[0])
