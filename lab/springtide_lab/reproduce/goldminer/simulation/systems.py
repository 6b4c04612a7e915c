"""Pure. The six systems of Table 5: what a job must have to start, how fast it is, and who shares out the rest.

In: a job and machines. Out: what it holds, or None: it waits. Next: `running` asks them, `elastic` does the rest.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from springtide_lab.reproduce.goldminer.simulation import cluster
from springtide_lab.reproduce.goldminer.simulation.cluster import Host
from springtide_lab.reproduce.goldminer.simulation.trace import Job

Held = list[tuple[Host, int, float]]
"""On which machine a job has how many GPUs and cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingSystem:
    """One line of Table 5."""

    name: str
    key: str
    metric: str = ""
    """Of the elastic ones."""
    jct: float
    gain: float
    queueing: float
    """Minutes, times and minutes, as the paper has them."""

    @property
    def elastic(self) -> bool:
        """Whether cores go from job to job while they run."""
        return bool(self.metric)


SYSTEMS = (
    SharingSystem(name="No DW (tuned C/G)", key="tuned", jct=540, gain=1.0, queueing=338),
    SharingSystem(name="No DW (HW C/G)", key="hardware", jct=495, gain=1.1, queueing=4),
    SharingSystem(name="Fixed DW (tuned)", key="fixed", jct=356, gain=1.5, queueing=160),
    SharingSystem(name="Fair", key="fair", metric="fair", jct=352, gain=1.5, queueing=14),
    SharingSystem(name="MaxTP", key="maxtp", metric="maxtp", jct=231, gain=2.3, queueing=0),
    SharingSystem(name="SRTF", key="srtf", metric="srtf", jct=213, gain=2.5, queueing=0),
)
TUNED, HARDWARE, FIXED, FAIR, MAXTP, SRTF = SYSTEMS


def own(metric: str) -> SharingSystem:
    """A metric of one's own, of which the paper knows nothing."""
    return SharingSystem(name=metric, key="own", metric=metric, jct=0.0, gain=0.0, queueing=0.0)


def start(system: SharingSystem, job: Job, hosts: Sequence[Host], share: float) -> tuple[Held, float] | None:
    """What the job gets and its speed, or None. `share` is the cores a GPU that machines have."""
    cpus = {"tuned": job.model.ratio, "fixed": job.model.trainer}.get(system.key, share)
    machines = cluster.pack(hosts, job.gpus, cpus)
    if machines is None:
        return None
    held: Held = [(host, 1, cpus) for host in machines]
    if system.elastic:
        return held, 0.0
    if system != FIXED:
        return held, job.model.alone(cpus)
    for host, gpus, cores in held:
        take(host, gpus, cores)
    data = cluster.spread(hosts, job.model.enough * job.gpus)
    for host, gpus, cores in held:
        take(host, -gpus, -cores)
    if data is None:
        return None
    return [*held, *((host, 0, cores) for host, cores in data)], job.model.capable


def take(host: Host, gpus: int, cpus: float) -> None:
    """From the machine; less than nothing: back to it."""
    host.gpus_free -= gpus
    host.cpus_free -= cpus
