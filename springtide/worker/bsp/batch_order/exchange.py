"""Exchange variable-size buffers between ranks over gloo.

In: the buffers of dense_sums.py and unit_gradients.py, one per rank. Out: the buffers that all ranks sent to this rank.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from springtide import errors
from springtide.worker.bsp import allreduce


def to_each(group: Any, parcels: Sequence[bytes]) -> list[bytes]:
    """Send one buffer to every rank and receive one from every rank; `GroupChanged` if a rank is lost."""
    sizes = torch.tensor([len(parcel) for parcel in parcels])
    coming = torch.empty_like(sizes)
    try:
        group.alltoall_base(coming, sizes, [], []).wait()
        leaving = torch.from_numpy(np.frombuffer(b"".join(parcels), np.uint8).copy())  # may be empty
        arriving = torch.empty(int(coming.sum()), dtype=torch.uint8)
        group.alltoall_base(arriving, leaving, coming.tolist(), sizes.tolist()).wait()
    except RuntimeError as error:
        raise errors.GroupChanged(f"a member of the group is lost: {allreduce.said(error)}") from None
    return [part.numpy().tobytes() for part in arriving.split(coming.tolist())]
