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
    """Servers and workers are still joining."""
    RUNNING = "running"
    """All servers are there and a worker has joined."""
    DRAINING = "draining"
    """Asked to stop: workers finish the batch in hand."""
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
    """Parts of the key space; fixed for the job. A power of two, 64 or more, and no fewer than servers."""
    seed: int = 0
    heartbeat_s: float = 1.0
    """Seconds between two heartbeats of a role."""
    silence_s: float = 30.0
    """A role that is silent for so long counts as lost. A dead process is noticed at once, this is for stuck ones."""
    server_silence_s: float | None = None
    """The same for servers, whose loss costs more; None: `silence_s`, but 30 s at least."""
    recovery: Recovery = "exact"
    """When a server is lost: "exact", what its slots have lost is trained again; "partial", its slots go back to the
    checkpoint and nothing is trained again."""
    gang: bool = False
    """Whether nobody trains before all first workers are there, or known to find no place."""
    join_s: float = 300.0
    """A role that has not joined after so long fails the job."""
    relaunches: int = 5
    """How often a worker or server may fail and be started again, within minutes; an eviction does not count."""
    backoff_s: float = 1.0
    """Seconds before the second relaunch of a role; doubled for each further one. The first is at once."""
    disk_s: float = 600.0
    """How long a disk that the master's journal cannot be written to is waited for; then the job fails."""
    drain_s: float = 30.0
    """How long a worker that scaling removes may take to finish the batch in hand."""
    tries: int = 3
    """How often workers try to read a part of the data set before it is given up, and the job can only fail."""
    checkpoints: CheckpointRules = field(default_factory=CheckpointRules)
    cache: CacheRules = field(default_factory=CacheRules)
    """What a bsp group's workers keep of the rows they train; a script may say otherwise."""
    stragglers: StragglerRules = field(default_factory=StragglerRules)
    """When a worker counts as slow."""
    guards: GuardRules = field(default_factory=GuardRules)
    """What the job does for its servers without being asked."""
    planning: PlanRules = field(default_factory=PlanRules)
    """Whether and how it finds its size by itself; numbers and limits here are what it begins with."""
    feeding: FeedRules = field(default_factory=lambda: FeedRules(workers=0))
    """Whether data workers read the data set and do the stateless part of the model, and how many."""
    online: OnlineJob = field(default_factory=OnlineJob)
    """Whether workers follow the traffic of a stream that the job reads."""
    worker_cpu: float | None = None
    """Cores of one worker; None leaves it unlimited."""
    worker_memory: int | None = None
    """Bytes of one worker; None leaves it unlimited."""
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
