"""Pure. Machines with GPUs and cores, and the six systems of Table 5 that place jobs on them.

In: a job's trainers, one a GPU, and the cores of each. Out: what the job holds and its speed, or None: then it waits,
and all behind it (first come, first served, packed compactly: section 5.6). Next: `cluster` runs them.
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
    """Of trainers and fixed data workers; elastic ones use what is left."""
    fed: float = 0.0
    """Cores of elastic data workers."""
    distributed: set[str] = field(default_factory=set)
    """Jobs here that are elsewhere too."""

    def __post_init__(self) -> None:
        self.gpus_free, self.cpus_free = self.gpus, self.cpus

    @property
    def fragmentation(self) -> float:
        """Section 2: how far the share of free cores and that of free GPUs are apart."""
        return abs((self.cpus_free - self.fed) / self.cpus - self.gpus_free / self.gpus)


def pack(hosts: Sequence[Host], trainers: int, cpus: float) -> list[Host] | None:
    """A machine for each trainer: one for all where possible, the fullest first; else as few as possible."""
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
    """Cores anywhere, the fullest machine first; None: there are not so many."""
    found, left = [], cpus
    for host in sorted(hosts, key=lambda host: (host.cpus_free, host.name)):
        take = min(host.cpus_free, left)
        if take > 1e-9:
            found.append((host, take))
            left -= take
    return found if left <= 1e-9 else None


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
    """From the machine; less than nothing: back to it."""
    host.gpus_free -= gpus
    host.cpus_free -= cpus
