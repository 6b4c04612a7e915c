"""Large tensors in CPU memory that the GPU can read and write directly.

The memory is mapped and registered here, because torch's pinned allocator rounds a size up to a power of two. Child
processes do not inherit the memory: a fork would copy every page of it.
"""

import mmap
import weakref
from pathlib import Path

import torch

PAGE = 1 << 21  # a huge page
GROUP = Path("/sys/fs/cgroup")


def empty(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return a CPU tensor that kernels on `device` can use. Raise MemoryError if the memory cannot be pinned."""
    count = torch.Size(shape).numel()
    if device.type != "cuda" or not count:
        return torch.empty(shape, dtype=dtype, device="cpu")
    size = -(-count * dtype.itemsize // PAGE) * PAGE
    try:
        mapped = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"there are no {size} bytes of CPU memory: {error}") from error
    for advice in (mmap.MADV_DONTFORK, mmap.MADV_HUGEPAGE):
        mapped.madvise(advice)
    whole = torch.frombuffer(mapped, dtype=torch.uint8)
    address, runtime = whole.data_ptr(), torch.cuda.cudart()
    whole.zero_()
    if int(runtime.cudaHostRegister(address, size, 0)) != 0:
        raise MemoryError(f"CUDA cannot pin {size} bytes of CPU memory")
    weakref.finalize(mapped, _unpin, address).atexit = False
    return whole[: count * dtype.itemsize].view(dtype).view(shape)


def _unpin(address: int) -> None:
    torch.cuda.synchronize()  # kernels that use the memory may still run
    torch.cuda.cudart().cudaHostUnregister(address)


def free_bytes() -> int:
    """Return the CPU memory that this process can still allocate, within the limit of its container."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    free = next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable")), 0)
    try:
        limit, used = (GROUP / "memory.max").read_text().strip(), int((GROUP / "memory.current").read_text())
    except OSError:
        return free
    return free if limit == "max" else max(0, min(free, int(limit) - used))
