"""Pure. Job specification with all values filled in, and the phases of a job.

In: `cli.job.run` builds a `JobSpec`. Next: `job.state` moves a job through its phases, `master` runs the job.
"""

import re
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Literal

from springtide import errors
from springtide.domain.core import resources, roles, validation
from springtide.domain.core.validation import holds_numbers
from springtide.domain.data.data_workers import FeedRules
from springtide.domain.model.cache_rules import CacheRules
from springtide.domain.model.checkpoints import CheckpointRules
from springtide.domain.spec.online_job import OnlineJob
from springtide.domain.spec.planning_config import PlanRules
from springtide.domain.spec.tracker_target import TrackingRules

SyncMode = Literal["async", "bsp"]
SYNC_MODES: tuple[SyncMode, ...] = ("async", "bsp")
Recovery = Literal["exact", "partial"]
RECOVERIES: tuple[Recovery, ...] = ("exact", "partial")
DEFAULT_SLOTS = 1024

_NAME = re.compile(r"[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?")


def check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise errors.BadInput(
            f"job name {name!r}: use lower-case letters, digits, '.', '_' and '-', at most 63, not at the ends"
        )


class JobPhase(StrEnum):
    """Phase of a job. `job.state.LEGAL` lists the legal transitions."""

    STARTING = "starting"
    RUNNING = "running"
    """All servers and at least one worker have joined."""
    DRAINING = "draining"
    """The job was asked to stop. Workers finish their current batch."""
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"

    @property
    def over(self) -> bool:
        return self in _OVER


_NO_PLANS, _NOT_ONLINE, _NOT_TRACKED = PlanRules(), OnlineJob(), TrackingRules()
_OVER = frozenset({JobPhase.FINISHED, JobPhase.STOPPED, JobPhase.FAILED})


class Blame(StrEnum):
    """Party whose failure ended a job. The command's exit code depends on the party."""

    NONE = "none"
    USER = "user"
    INFRASTRUCTURE = "infrastructure"


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardRules:
    """Thresholds at which the job adds, relieves or replaces servers on its own."""

    memory: bool = True
    """Add servers before their memory limit is reached."""
    servers: bool = True
    """Move load away from a hot server, and replace a slow server."""
    slower: float = 3.0
    """A server counts as slow if its time per key is this many times its peers' time per key."""
    far_slower: float = 10.0
    """A server is drained without further checks if its time per key, in each of the last two reports, is this many
    times the time per key of its peers. The server's slots go to its peers, and later to its replacement.
    """
    throttled: float = 0.6
    """A server can count as throttled by its machine if at least this share of its quota periods was throttled."""
    given: float = 0.5
    """Share of the CPU that a throttled server should get. With less than this share, its machine certainly throttles
    it, because the kernel counts the throttled periods.
    """
    hotter: float = 1.3
    """A server is more loaded than its peers if it gets this many times their keys per second."""
    at_work: float = 0.15
    """A server cannot slow the job down if its tables are busy for less than this share of the time."""
    busy: float = 0.8
    """A server whose CPU usage exceeds this share of its limit has no spare CPU."""
    window_s: float = 5.0
    """Length of the recent activity, in seconds, over which servers are compared."""
    times: int = 3
    """Consecutive checks that must agree before the guard acts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StragglerRules:
    """Thresholds at which a worker counts as slow, and as recovered."""

    window_s: float = 20.0
    """Seconds over which the speed of workers is measured."""
    every_s: float = 15.0
    """Seconds between two decisions. With this interval and the default window, a straggler's leases are halved after
    well under a minute.
    """
    deviations: float = 3.0
    """A worker is a straggler if its speed is this many deviations below its peers' median. A value of 3 ignores the
    normal spread."""
    floor: float = 0.1
    """Lower limit of one deviation, as a share of the median, so that tiny differences among equal workers do not
    count.
    """
    recovered: float = 0.85
    """A straggler's leases grow again when its speed reaches this share of its peers' median."""

    def __post_init__(self) -> None:
        validation.check_range(self, *(field.name for field in fields(self)), above=0, of="straggler rule ")


@dataclass(frozen=True, kw_only=True)
class SpecSizes:
    """Number and limits of a job's processes. A job that plans its size begins with these limits."""

    servers: int = 1
    workers: int = 1
    slots: int = DEFAULT_SLOTS
    """Number of slots of the key space, fixed for the job: a power of two, at least 64."""
    worker_cpu: float | None = None
    """Number of cores of each worker; None means no limit."""
    worker_memory: int | None = None
    """Bytes of memory of each worker; None means no limit."""
    worker_gpu: float | None = None
    """GPU share of each worker: 1, a part of one GPU, or 0. None means that workers share the GPUs of their host."""
    gpus: int | None = None
    """Number of GPUs that the job may use; None means an unknown number, or all GPUs of the cluster."""
    server_cpu: float | None = None
    server_memory: int | None = None

    @property
    def most_gpu_workers(self) -> int | None:
        """Return how many workers the GPUs allow at most; None if GPUs do not limit the number."""
        return resources.workers_on(self.gpus, self.worker_gpu) if self.worker_gpu and self.gpus is not None else None


@dataclass(frozen=True, kw_only=True)
class Patience:
    """Timeouts and number of tries."""

    join_s: float = 300.0
    """Seconds within which all first roles must join."""
    silence_s: float = 30.0
    """Declare a role lost after this many seconds without a heartbeat."""
    heartbeat_s: float = 1.0
    """Seconds between two heartbeats of a role."""
    disk_s: float = 600.0
    """Seconds to wait while the disk of the run folder is full, before the job fails."""
    tries: int = 3
    """Number of tries to read data before the job fails."""


@dataclass(frozen=True, kw_only=True)
class SpecPatience(Patience):
    """Timeouts, intervals and numbers of tries, with those that users do not set."""

    server_silence_s: float | None = None
    """Timeout for servers, whose loss costs more than that of a worker; None means `silence_s`, but at least 30 s."""
    relaunches: int = 5
    """Maximum number of relaunches of a failed worker or server within minutes. Evictions do not count."""
    backoff_s: float = 1.0
    """Seconds before the second relaunch of a role, doubled for each further relaunch."""
    drain_s: float = 30.0
    """Seconds that a worker removed by scaling has to finish its current batch."""


@holds_numbers
@dataclass(frozen=True, kw_only=True)
class JobSpec(SpecPatience, SpecSizes):
    """Job as the user requested it, with defaults filled in."""

    name: str
    sync: SyncMode = "async"
    seed: int = 0
    recovery: Recovery = "exact"
    """Handling of a lost server. "exact": the job trains the updates that the server's slots lost again. "partial": the
    server's slots return to the checkpoint, and nothing is trained again."""
    gang: bool = False
    """True if training starts only when each of the first workers has joined or is known to fit nowhere."""
    checkpoints: CheckpointRules = field(default_factory=CheckpointRules)
    cache: CacheRules = field(default_factory=CacheRules)
    """Row cache of the workers. A script may override this setting."""
    stragglers: StragglerRules = field(default_factory=StragglerRules)
    guards: GuardRules = field(default_factory=GuardRules)
    planning: PlanRules = field(default_factory=PlanRules)
    """Planning of the job's size. With planning, numbers and limits in this spec are the starting point."""
    feeding: FeedRules = field(default_factory=lambda: FeedRules(workers=0))
    """Number of data workers, and what they do: read, and run the stateless part of the model."""
    online: OnlineJob = field(default_factory=OnlineJob)
    tracking: TrackingRules = field(default_factory=TrackingRules)

    def __post_init__(self) -> None:
        check_name(self.name)
        if self.servers < 1 or self.workers < 1:
            raise errors.BadInput(
                f"job {self.name}: {self.servers} servers and {self.workers} workers; a job needs at least one of each"
            )
        validation.check_range(self, "tries", least=1, of=f"job {self.name}: ")
        validation.choice(self.sync, "sync mode", SYNC_MODES)
        validation.choice(self.recovery, "recovery", RECOVERIES)
        roles.check_slots(self.slots, f"job {self.name}")
        if self.servers > self.slots:
            raise errors.BadInput(f"job {self.name}: {self.servers} servers but only {self.slots} slots; raise slots")
        planning = self.planning
        if planning.on and planning.resize and (self.worker_cpu is None or self.server_cpu is None):
            raise errors.BadInput(f"job {self.name}: a job that plans cores needs initial limits; give both")

    def for_members(self) -> "JobSpec":
        """Return the spec for workers, servers and data workers: without URLs, which may hold passwords."""
        checkpoints = replace(self.checkpoints, url="", resume="")
        return replace(self, checkpoints=checkpoints, planning=_NO_PLANS, online=_NOT_ONLINE, tracking=_NOT_TRACKED)


BY_RANK = 0
"""Each worker sums its own samples, and then the sums of the workers are added. This order is the fastest and the
default.
"""


def unit_of(reduction: str | None) -> int:
    """Return the number of samples in a unit, the gradients of which are summed in batch order. Return 0 for rank
    order."""
    if reduction is None or reduction == "rank-order":
        return BY_RANK
    name, colon, samples = reduction.partition(":")
    if name != "batch-order" or (colon and not (samples.isascii() and samples.isdigit() and int(samples))):
        raise errors.BadInput(
            f'reduction={reduction!r}: give "rank-order" (the default), "batch-order" (sample after sample) or '
            '"batch-order:8" (eight at a time)'
        )
    return int(samples) if colon else 1
