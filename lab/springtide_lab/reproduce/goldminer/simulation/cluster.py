"""Pure. Machines with GPUs and cores, and who gets them: first come, first served, packed compactly (section 5.6).

In: a job's trainers, one a GPU, and the cores of each. Out: a machine for each, or nothing: then the job waits, and all
behind it. Data workers of running jobs never keep a trainer out: they give way. Next: `running`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field


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
