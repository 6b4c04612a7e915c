"""Copy all dense values or gradients between a GPU and the native client's memory, in one transfer each way.

In: the flat CPU buffers of dense.py. Out: one flat buffer on the GPU. The CPU buffers are pinned in place, so
that transfers run at full speed. Uploads run on their own stream and do not wait for the step that the GPU computes.
"""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def pin(memory: torch.Tensor) -> None:
    """Pin memory that torch did not allocate. Without permission to lock it, transfers only become slower."""
    torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, 0)


def unpin(address: int) -> None:
    torch.cuda.cudart().cudaHostUnregister(address)


class GpuBucket:
    """A flat buffer on the GPU, beside flat buffers for values and gradients in CPU memory."""

    def __init__(self, values: torch.Tensor, grads: torch.Tensor, gpu: torch.device) -> None:
        self.flat = torch.zeros_like(values, device=gpu)
        self._values, self._grads = values, grads
        self._upload = torch.cuda.Stream(gpu)
        self._free = torch.cuda.Event()
        """Recorded after the last use of `flat`."""
        for memory in (values, grads):
            if memory.nbytes:
                pin(memory)
                weakref.finalize(self, unpin, memory.data_ptr())

    @contextmanager
    def uploaded(self) -> Iterator[None]:
        """Copy the values to `flat` for use in the `with` block. After the block, the caller may change its own
        memory."""
        step = torch.cuda.current_stream(self.flat.device)
        self._upload.wait_event(self._free)
        with torch.cuda.stream(self._upload):
            self.flat.copy_(self._values, non_blocking=True)
        step.wait_stream(self._upload)
        yield
        self._free.record(step)
        self._upload.synchronize()  # waits for the copy, not for the step

    def download(self) -> None:
        """Copy `flat` to the memory of the gradients, and wait for it."""
        self._grads.copy_(self.flat, non_blocking=True)
        step = torch.cuda.current_stream(self.flat.device)
        self._free.record(step)
        step.synchronize()
