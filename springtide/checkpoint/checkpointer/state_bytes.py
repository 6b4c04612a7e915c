"""A small state dict as bytes, and back: what `job.register` sends along. Nothing here is ever unpickled.

In: what `state_dict()` of a scheduler or a user's own object returns. Out: the same image as
checkpoint/checkpointer/state_image.py lays out in files, in one piece. Next: `worker.user_objects` sends it, a job's
manifest keeps it.
"""

import io
from typing import Any, cast

import torch

from springtide.checkpoint.checkpointer import state_head, state_image


def encode(state: Any) -> bytes:
    """A state with all its tensors; BadInput names the place of what cannot be kept."""
    plan = state_image.plan(state, step=0, sequence=0)
    image = bytearray(plan.head.image_bytes)
    image[: state_head.BYTES] = state_head.encode(plan.head)
    image[state_head.BYTES : state_head.BYTES + len(plan.index)] = plan.index
    for place, tensor in zip(plan.places, plan.tensors, strict=True):
        content = tensor.cpu().contiguous().resolve_conj().resolve_neg().reshape(-1).view(torch.uint8)
        image[place.offset : place.offset + place.size] = memoryview(cast(Any, content.numpy()))
    return bytes(image)


def decode(content: bytes) -> Any:
    """The state again, in memory of its own; BadInput says what is wrong with it."""
    return state_image.read(io.BytesIO(content), summed=False)[1]
