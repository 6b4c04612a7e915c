"""Pure. Resolved job specification, and the phases of a job.

In: `cli.job.run` builds a `JobSpec`. Next: `job.state` moves a job through its phases, `master` runs the job.
"""

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from springtide import errors
from springtide.domain.core.validation import holds_numbers
from springtide.domain.data.data_workers import FeedRules
from springtide.domain.model.cache_rules import CacheRules
from springtide.domain.model.checkpoints import CheckpointRules
from springtide.domain.spec.guard_rules import GuardRules, StragglerRules
from springtide.domain.spec.online_job import OnlineJob
from springtide.domain.spec.planning_config import PlanRules

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
    """Servers and workers are joining."""
    RUNNING = "running"
    """All servers and at least one worker have joined."""
    DRAINING = "draining"
    """The job was asked to stop. Workers finish their current batch."""
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"

    @property
    def over(self) -> bool:
        return self in (JobPhase.FINISHED, JobPhase.STOPPED, JobPhase.FAILED)


class Blame(StrEnum):
    """Party whose failure ended a job. It determines the exit code of the command."""

    NONE = "none"
    USER = "user"
    INFRASTRUCTURE = "infrastructure"


@holds_numbers
@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """Job as the user requested it, with defaults filled in."""

    name: str
    servers: int = 1
    workers: int = 1
    sync: SyncMode = "async"
    slots: int = DEFAULT_SLOTS
    """Number of slots of the key space, fixed for the job: a power of two, at least 64 and at least the number of
    servers."""
    seed: int = 0
    heartbeat_s: float = 1.0
    """Seconds between two heartbeats of a role."""
    silence_s: float = 30.0
    """Seconds without a heartbeat after which a role is lost. This detects hung processes; dead processes are detected
    at once."""
    server_silence_s: float | None = None
    """Timeout for servers, whose loss costs more; None means `silence_s`, but at least 30 s."""
    recovery: Recovery = "exact"
    """Handling of a lost server. "exact": the updates that its slots lost are trained again. "partial": its slots
    return to the checkpoint and nothing is trained again."""
    gang: bool = False
    """True if training starts only when all first workers have joined or are known to be unplaceable."""
    join_s: float = 300.0
    """Seconds within which a role must join, or the job fails."""
    relaunches: int = 5
    """Maximum number of relaunches of a failed worker or server within minutes. Evictions do not count."""
    backoff_s: float = 1.0
    """Seconds before the second relaunch of a role, doubled for each further relaunch. The first relaunch is
    immediate."""
    disk_s: float = 600.0
    """Seconds to wait while the disk of the master's journal is not writable. Then the job fails."""
    drain_s: float = 30.0
    """Seconds that a worker removed by scaling has to finish its current batch."""
    tries: int = 3
    """Number of tries to read a part of the data set. After the last try the part is given up and the job fails."""
    checkpoints: CheckpointRules = field(default_factory=CheckpointRules)
    cache: CacheRules = field(default_factory=CacheRules)
    """Row cache of the workers. A script may override it."""
    stragglers: StragglerRules = field(default_factory=StragglerRules)
    """Thresholds for stragglers."""
    guards: GuardRules = field(default_factory=GuardRules)
    """Automatic actions for servers."""
    planning: PlanRules = field(default_factory=PlanRules)
    """Planning of the job's size. Numbers and limits in this spec are the starting point."""
    feeding: FeedRules = field(default_factory=lambda: FeedRules(workers=0))
    """Number of data workers, and the work they do: reading, and the stateless part of the model."""
    online: OnlineJob = field(default_factory=OnlineJob)
    """Scaling of workers with the traffic of a stream."""
    worker_cpu: float | None = None
    """Cores of each worker; None means no limit."""
    worker_memory: int | None = None
    """Bytes of each worker; None means no limit."""
    server_cpu: float | None = None
    server_memory: int | None = None

    def __post_init__(self) -> None:
        check_name(self.name)
        if self.servers < 1 or self.workers < 1:
            raise errors.BadInput(
                f"job {self.name}: {self.servers} servers and {self.workers} workers; it needs at least one of each"
            )
        if self.tries < 1:
            raise errors.BadInput(f"job {self.name}: {self.tries} tries; wanted 1 or more")
        if self.sync not in SYNC_MODES:
            raise errors.UnknownName("sync mode", self.sync, SYNC_MODES)
        if self.recovery not in RECOVERIES:
            raise errors.UnknownName("recovery", self.recovery, RECOVERIES)
        if self.slots < 64 or self.slots & (self.slots - 1):
            raise errors.BadInput(f"job {self.name}: {self.slots} slots; use a power of two, 64 or more")
        if self.servers > self.slots:
            raise errors.BadInput(f"job {self.name}: {self.servers} servers but only {self.slots} slots; raise slots")
        planning = self.planning
        if planning.on and planning.resize and (self.worker_cpu is None or self.server_cpu is None):
            raise errors.BadInput(f"job {self.name}: it is to plan cores, but begins without limits; give both")
