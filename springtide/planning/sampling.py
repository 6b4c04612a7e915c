"""Pure. The simpler model of DLRover for a job that runs as a sample: what a worker and its servers can make use of.

In: one profile of a job with few workers, and the CPU that its roles used. Out: `Demand`, or `Refused`. Next: stages
size a job by it before enough was measured for `planning.fit`.

    R = N_w * B / (t_IO + W_compute / min(w, w^) + W_update / min(s_total / N_w, s^))            (DLRover, Eqn 1)

with w^ the cores that a worker used when it had more than enough, and s^ those that servers used for one worker. Eqn 1
has min(s_total, s^) under the constraint N_w s^ < s_total (Eqn 4); here servers that are too small for it share what
they have, which is the same within the constraint and holds beyond it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from springtide.domain.cluster import RoleKind
from springtide.domain.profile import Profile
from springtide.domain.view import RoleUse
from springtide.planning.tabulate import Refused

LEAST_CPU = 0.01
"""A role that used less was not at work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What one step of one worker takes."""

    worker_cpu: float
    """w^: cores."""
    server_cpu: float
    """s^: cores of all servers together, for one worker."""
    io_s: float
    """t_IO: seconds that no core shortens."""
    compute: float
    """W_compute: core-seconds of the worker."""
    update: float
    """W_update: core-seconds of servers."""
    batch: int

    def step_s(self, *, workers: int, worker_cpu: float, server_cpu_total: float) -> float:
        """Seconds of a step in another configuration."""
        share = min(server_cpu_total / workers, self.server_cpu)
        return self.io_s + self.compute / min(worker_cpu, self.worker_cpu) + self.update / share

    def throughput(self, *, workers: int, worker_cpu: float, server_cpu_total: float) -> float:
        """R: samples a second."""
        seconds = self.step_s(workers=workers, worker_cpu=worker_cpu, server_cpu_total=server_cpu_total)
        return workers * self.batch / seconds


def demand(profile: Profile, uses: Sequence[RoleUse]) -> Demand | Refused:
    """What was used, and how long for: a step's time is the worker's, the servers', or neither's."""
    seconds = profile.step_s
    if not 0 < seconds < math.inf:
        return Refused(why="the sample has no steps, or no time for them")
    workers = [use.cpu_used for use in uses if use.role.kind is RoleKind.WORKER and math.isfinite(use.cpu_used)]
    servers = [use.cpu_used for use in uses if use.role.kind is RoleKind.SERVER and math.isfinite(use.cpu_used)]
    if sum(workers) < LEAST_CPU or sum(servers) < LEAST_CPU:
        return Refused(why=f"workers used {sum(workers):.2g} cores and servers {sum(servers):.2g}: not at work yet")
    timing, steps = profile.timing, profile.timing.steps
    compute_s = min(max(timing.gradient_s / steps, 0.0), seconds)
    update_s = min(max((timing.update_s + timing.lookup_s) / steps, 0.0), seconds - compute_s)
    if not math.isfinite(compute_s + update_s):
        return Refused(why="the sample has times that are no numbers")
    worker_cpu, server_cpu = sum(workers) / len(workers), sum(servers) / profile.shape.workers
    return Demand(
        worker_cpu=worker_cpu, server_cpu=server_cpu, io_s=seconds - compute_s - update_s,
        compute=compute_s * worker_cpu, update=update_s * server_cpu, batch=profile.batch,
    )  # fmt: skip
