"""Pure. Define machines with GPUs and cores, and the six systems of Table 5 that place jobs on them.

In: a job's trainers, one per GPU, and the cores of each. Out: the resources that the job holds and its speed, or None
if the job must wait. Later jobs then wait too: first come, first served, packed compactly (section 5.6). Next:
`cluster`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from springtide_lab.reproduce.goldminer.jobs import Job


@dataclass(slots=True)
class Host:
    """One machine."""

    name: str
    gpus: int
    cpus: float
    gpus_free: int = 0
    cpus_free: float = 0.0
    """Cores that trainers and fixed data workers leave free; elastic data workers use them."""
    fed: float = 0.0
    """Cores that elastic data workers use."""
    distributed: set[str] = field(default_factory=set)
    """Names of jobs on this machine that also run on other machines."""

    def __post_init__(self) -> None:
        self.gpus_free, self.cpus_free = self.gpus, self.cpus

    @property
    def fragmentation(self) -> float:
        """Difference between the shares of free cores and free GPUs, as defined in section 2."""
        return abs((self.cpus_free - self.fed) / self.cpus - self.gpus_free / self.gpus)


def pack(hosts: Sequence[Host], trainers: int, cpus: float) -> list[Host] | None:
    """Return a machine for each trainer of a job: the fullest machine that has room for all of them, or else as few
    machines as possible.
    """
    room = {host.name: _holds(host, cpus) for host in hosts}
    whole = [host for host in hosts if room[host.name] >= trainers]
    if whole:
        return [min(whole, key=lambda host: (host.gpus_free, host.cpus_free, host.name))] * trainers
    found: list[Host] = []
    for host in sorted(hosts, key=lambda host: (-room[host.name], host.gpus_free, host.name)):
        found += [host] * min(room[host.name], trainers - len(found))
    return found if len(found) == trainers else None


def _holds(host: Host, cpus: float) -> int:
    return min(host.gpus_free, int((host.cpus_free + 1e-9) // cpus))


def spread(hosts: Sequence[Host], cpus: float) -> list[tuple[Host, float]] | None:
    """Return cores on any machines, the fullest machine first; None if there are not enough free cores."""
    found, left = [], cpus
    for host in sorted(hosts, key=lambda host: (host.cpus_free, host.name)):
        take = min(host.cpus_free, left)
        if take > 1e-9:
            found.append((host, take))
            left -= take
    return found if left <= 1e-9 else None


Held = list[tuple[Host, int, float]]
"""Resources of a job: machine, and GPUs and cores on that machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingSystem:
    """The system of one line of Table 5."""

    name: str
    key: str
    metric: str = ""
    """Metric by which an elastic system allocates cores; empty for other systems."""
    jct: float
    gain: float
    queueing: float
    """The paper's queueing time in minutes; `jct` is in minutes too, `gain` is a factor."""

    @property
    def elastic(self) -> bool:
        """True if cores move between running jobs."""
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
    """Return an elastic system with a metric of the user instead of one of the paper's metrics."""
    return SharingSystem(name=metric, key="own", metric=metric, jct=0.0, gain=0.0, queueing=0.0)


def start(system: SharingSystem, job: Job, hosts: Sequence[Host], share: float) -> tuple[Held, float] | None:
    """Return a job's resources and speed, or None if it must wait. `share` is the machines' cores per GPU."""
    cpus = {"tuned": job.model.ratio, "fixed": job.model.trainer}.get(system.key, share)
    machines = pack(hosts, job.gpus, cpus)
    if machines is None:
        return None
    held: Held = [(host, 1, cpus) for host in machines]
    if system.elastic:
        return held, 0.0
    if system != FIXED:
        return held, job.model.alone(cpus)
    for host, gpus, cores in held:
        take(host, gpus, cores)
    data = spread(hosts, job.model.enough * job.gpus)
    for host, gpus, cores in held:
        take(host, -gpus, -cores)
    if data is None:
        return None
    return [*held, *((host, 0, cores) for host, cores in data)], job.model.capable


def take(host: Host, gpus: int, cpus: float) -> None:
    """Take GPUs and cores from a machine; negative numbers return them."""
    host.gpus_free -= gpus
    host.cpus_free -= cpus
