"""Copies between CPU memory and a device that wait for nothing, on CUDA streams of their own.

In: rows in memory of the native core, which is registered with the GPU's driver here. Out: tensors on the device. On
the CPU as "device", a copy is done at once, or not needed. Next: embedding/lookup/pulled_rows.py.
"""

import functools
import logging
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch

from springtide import _native

log = logging.getLogger(__name__)


class Copies:
    """Copies to and from one device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.cuda = device.type == "cuda"
        self._up: Any = torch.cuda.Stream(device) if self.cuda else None
        self._down: Any = torch.cuda.Stream(device) if self.cuda else None

    def pinned(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        """Return new CPU memory from which the device can copy."""
        return torch.empty(shape, dtype=dtype, device="cpu", pin_memory=self.cuda)

    def to_device(self, host: torch.Tensor) -> torch.Tensor:
        """Start a copy to the device. The result may be used after `join`. Torch keeps its own pinned memory until the
        copy is done; `RegisteredMemory` keeps the rows of the native core."""
        if not self.cuda:
            return host
        with torch.cuda.stream(self._up):
            return host.to(self.device, non_blocking=True)

    def uploaded(self) -> Any:
        """Return an event after all copies to the device that have been started."""
        return self._up.record_event()

    def join(self, *tensors: torch.Tensor) -> None:
        """Let the current stream wait for the copies of these tensors."""
        if self.cuda:
            current = torch.cuda.current_stream(self.device)
            current.wait_stream(self._up)
            for near in tensors:
                near.record_stream(current)

    def to_host(self, *pairs: tuple[torch.Tensor, torch.Tensor]) -> Any:
        """Copy each tensor on the device to CPU memory, after what the current stream has to do. Return an event to
        wait for."""
        if not self.cuda:
            for near, host in pairs:
                host.copy_(near)
            return None
        self._down.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._down):
            for near, host in pairs:
                host.copy_(near, non_blocking=True)
                near.record_stream(self._down)
        return self._down.record_event()


@functools.cache
def copies_of(device: torch.device) -> Copies:
    return Copies(device)


class RegisteredMemory:
    """Memory of one client of the native core that is registered with the GPU's driver, so that copies do not block."""

    def __init__(self) -> None:
        self._held: dict[int, _native.HeldMemory] = {}
        self._refused = False
        self._under_way: deque[tuple[Any, torch.Tensor]] = deque()
        """Rows that a copy may still read, with the event after the copy."""
        weakref.finalize(self, _unregister, self._held)

    def add(self, memories: Sequence[_native.HeldMemory]) -> None:
        """Register memory that is not registered yet. Release memory that the core has given up."""
        fresh = [memory for memory in memories if memory.address not in self._held]
        if not fresh or self._refused:
            return
        unused = {address: memory for address, memory in self._held.items() if memory.unused}
        for address in unused:
            del self._held[address]
        _unregister(unused)
        for memory in fresh:
            if not register(memory.address, memory.nbytes):
                self._refused = True
                log.warning("the GPU's driver cannot lock memory for rows, so rows are copied more slowly")
                return
            self._held[memory.address] = memory

    def to_device(self, rows: torch.Tensor, copies: Copies) -> torch.Tensor:
        """Start a copy of rows in this memory, and keep them until the copy is done."""
        near = copies.to_device(rows)
        if copies.cuda:
            while self._under_way and self._under_way[0][0].query():
                self._under_way.popleft()
            self._under_way.append((copies.uploaded(), rows))
        return near


def _unregister(held: dict[int, _native.HeldMemory]) -> None:
    for address in held:
        unregister(address)
    held.clear()


_registered: set[int] = set()
"""Addresses of registered memory. The driver refuses to register memory twice."""


def register(address: int, nbytes: int) -> bool:
    """Register memory with the GPU's driver, so that copies do not block. Return False if the driver refuses."""
    if address not in _registered:
        if int(torch.cuda.cudart().cudaHostRegister(address, nbytes, 0)):
            return False
        _registered.add(address)
    return True


def unregister(address: int) -> None:
    if address in _registered:
        _registered.remove(address)
        torch.cuda.cudart().cudaHostUnregister(address)
