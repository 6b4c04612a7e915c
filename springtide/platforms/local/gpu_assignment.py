"""Pure. Assigns the GPUs of this machine to the processes of a job. Each process sees only the GPU that it got.

In: the GPUs (`telemetry.host.gpus`), and the share of each process. Out: a value of `CUDA_VISIBLE_DEVICES`. Next:
`platforms.local.platform`.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from springtide.domain.core.roles import Life, Role, RoleKind

NONE = ""
"""Value of `CUDA_VISIBLE_DEVICES` that hides all GPUs, so that a process holds no CUDA context."""
WHOLE = 1 + 1e-9
USERS = (RoleKind.WORKER, RoleKind.DATA_WORKER)


class GpuShare(NamedTuple):
    """GPU of one process, and its reserved share of it; None for a process without a reservation."""

    gpu: str
    share: float | None


def choose_gpu(gpus: Sequence[str], others: Mapping[Role, GpuShare], share: float | None, before: str) -> str:
    """Return the GPU for a process: the GPU that its role had `before`, if that GPU still has room. Otherwise return
    the GPU with the smallest reserved share and then the fewest processes.

    If the shares add up to more than the GPUs, the next process shares the GPU on which the least is reserved.
    """
    if not gpus or share == 0:
        return NONE
    reserved = dict.fromkeys(gpus, 0.0)
    processes = dict.fromkeys(gpus, 0)
    for held in others.values():
        if held.gpu in reserved:
            reserved[held.gpu] += held.share or 0.0
            processes[held.gpu] += 1
    if before in reserved and (share is None or reserved[before] + share <= WHOLE):
        return before
    return min(gpus, key=lambda gpu: (reserved[gpu], processes[gpu], gpus.index(gpu)))


class GpuAssignments(msgspec.Struct):
    """GPUs of the running processes of one job. If several GPUs are equally good, the first in `gpus` is used."""

    gpus: tuple[str, ...]
    held: dict[Life, GpuShare] = msgspec.field(default_factory=dict)
    last: dict[Role, str] = msgspec.field(default_factory=dict)

    def assign(self, life: Life, share: float | None) -> str:
        """Return `CUDA_VISIBLE_DEVICES` for a process that starts. If an earlier process of the same role is still
        assigned, its share is released first."""
        if life.role.kind not in USERS:
            return NONE
        others = {other.role: held for other, held in self.held.items() if other.role != life.role}
        gpu = choose_gpu(self.gpus, others, share, self.last.get(life.role, NONE))
        if gpu != NONE:
            self.held[life] = GpuShare(gpu, share)
            self.last[life.role] = gpu
        return gpu

    def release(self, life: Life) -> None:
        self.held.pop(life, None)
