"""Pure. CPU and memory limits of a process, its measured usage, and the default sizes of a local job."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from springtide import errors

LEAST_CPU = 0.01  # smallest CPU limit, because the kernel's minimum quota is 1 ms of CPU per period of 0.1 s
# smallest memory limit; a Python interpreter with Springtide's modules needs this much, and training needs more
LEAST_MEMORY = 32 << 20

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_MEMORY = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([kmgt])i?b?|b)?", re.IGNORECASE)


class ProcessLimits(msgspec.Struct, frozen=True, kw_only=True):
    """CPU and memory limits of one process and its children; None means no limit."""

    cpu: float | None = None
    memory: int | None = None
    gpu: float | None = None
    """GPU share of the process: 1 for a whole GPU, a part of one GPU such as 0.5, or 0 for none. None means that no GPU
    is
    reserved: the process may use GPUs of its host beside other processes.
    """

    def __post_init__(self) -> None:
        if self.cpu is not None and not LEAST_CPU <= self.cpu < math.inf:
            raise errors.BadInput(f"cpu {self.cpu:g}: expected a number of cores from {LEAST_CPU:g} up, such as 0.5")
        if self.memory is not None and self.memory < LEAST_MEMORY:
            raise errors.BadInput(
                f"memory {self.memory} bytes: a process needs {LEAST_MEMORY >> 20}M at least; give a unit, such as 2G"
            )

    @property
    def any(self) -> bool:
        return self.cpu is not None or self.memory is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Resources that a process has used since its start. Children of the process are included if the platform can count
    them.
    """

    cpu_s: float = 0.0
    memory: int = 0
    """Resident bytes at present, without memory that the kernel can reclaim."""
    peak: int = 0
    """Peak of the bytes that count against a memory limit."""
    throttled_s: float = 0.0
    """Sum of the durations of all quota periods in which the process used up its CPU quota, in seconds."""


class GpuUse(msgspec.Struct, frozen=True, kw_only=True):
    """Memory that a process holds on its GPU, and the utilization of the whole GPU."""

    memory: int = 0
    """Bytes that torch's allocator has reserved for the process. Of these bytes, `allocated` are in tensors."""
    allocated: int = 0
    total: int = 0
    """Total memory of the GPU, in bytes."""
    busy: float | None = None
    """Share of the last second or less in which a kernel of any process ran; None if the driver does not report it."""

    def __str__(self) -> str:
        busy = "" if self.busy is None else f"{self.busy:.0%} "
        return f"{busy}{show_memory(self.memory)}/{show_memory(self.total)}"


def sum_gpus(uses: Iterable[GpuUse]) -> GpuUse | None:
    """Return the use of several GPUs together, or of several processes; None if there is no GPU."""
    all_uses = list(uses)
    if not all_uses:
        return None
    busy = [use.busy for use in all_uses if use.busy is not None]
    return GpuUse(
        memory=sum(use.memory for use in all_uses),
        allocated=sum(use.allocated for use in all_uses),
        total=sum(use.total for use in all_uses),
        busy=sum(busy) / len(busy) if busy else None,
    )


def workers_on(gpus: int, each: float) -> int:
    """Return the number of workers that fit on these GPUs, if each worker gets `each` of one GPU."""
    return gpus * math.floor(1 / each * (1 + 1e-9))


def gpus_for(workers: int, each: float) -> int:
    """Return the number of GPUs that these workers need; the inverse of `workers_on`. No worker is split over two
    GPUs."""
    return -(-workers // workers_on(1, each)) if each else 0


def parse_memory(text: str) -> int:
    """Return the bytes of "2G", "512M", "1.5GiB", "4Gi" or "1073741824". Units are powers of 1024."""
    found = _MEMORY.fullmatch(text.strip())
    if not found:
        raise errors.BadInput(f"memory {text!r}: expected a number and a unit, such as 512M or 2G")
    return int(float(found[1]) * _UNITS[(found[2] or "").lower()])


def show_memory(number: int) -> str:
    for unit, size in (("T", 1 << 40), ("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)):
        if number >= size:
            return f"{number / size:.1f}".removesuffix(".0") + unit
    return str(number)


class RoleSizes(msgspec.Struct, frozen=True, kw_only=True):
    """Number of servers and workers of a local job, and compute threads per worker."""

    servers: int
    workers: int
    threads_per_worker: int


def size_locally(
    cores: int, *, servers: int | None = None, workers: int | None = None, cpu: float | None = None
) -> RoleSizes:
    """Choose the sizes that the user did not set.

    A job starts several workers only if there are two cores per worker, because servers need cores too. A limit of
    `cpu` cores also limits the threads, because surplus threads slow each other down.
    """
    servers = 1 if servers is None else servers
    workers = (2 if cores >= 4 else 1) if workers is None else workers
    threads = max(1, cores // max(1, workers))
    if cpu is not None:
        threads = min(threads, max(1, math.ceil(cpu)))
    return RoleSizes(servers=servers, workers=workers, threads_per_worker=threads)
