"""Pure. Settings of planning, with default values from the papers where a paper gives one.

In: settings of a master or the brain. Next: every policy, `(ClusterView, PlanningConfig) -> Decision`.
"""

import math
from dataclasses import dataclass, field, fields
from enum import StrEnum

from springtide import errors
from springtide.domain.core.shape import Prices, ShapeBounds


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPolicyConfig:
    """Step sizes of the policies that scale in fixed steps."""

    workers: int = 4
    """4 for Wide & Deep, 1 for xDeepFM, in DLRover's comparison."""
    servers: int = 2
    """The same: 2 and 1."""
    every_s: float = 180.0
    """Between two steps: 20 s to launch, 100 s to begin, 60 s to sample."""
    threshold: float = 0.3
    """A new worker must bring this part of what one brings in the mean, or no more are added."""

    def __post_init__(self) -> None:
        if self.workers < 1 or self.servers < 1:
            raise errors.BadInput(
                f"planning: steps of {self.workers} workers, {self.servers} servers; wanted 1 or more"
            )
        if not (0 <= self.every_s < math.inf and 0 <= self.threshold < math.inf):
            raise errors.BadInput(
                f"planning: steps every {self.every_s:g} s, threshold {self.threshold:g}; wanted neither below 0"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningConfig:
    """Settings of planning. DLRover-RM is the source of rho. DLRover is the source of the cores of a job, a node and a
    server, and of the times."""

    policy: str = "springtide"
    """A built-in name, that of a plug-in, or `module:function`."""
    priority: str = "remaining"
    """Whose gain counts for how much: "remaining" (by rho), "remaining_now", "equal", "given" or "waiting"."""
    prices: Prices = field(default_factory=Prices)
    rho: float = 2.5
    """Weight of a job: 1 / (time left)^rho. 0: all alike; larger: the shortest first; below 0: the longest first."""
    epsilon: float = 1.0
    """Seconds added to the time left, so that a job at its end does not weigh without bounds."""
    exact_seconds: float = 0.5
    """How long the exact solver may take before the greedy answer is used; 0: greedy only."""
    exact_options: int = 4_000
    """Candidates of all jobs together above which the exact solver is not tried."""
    least_gain: float = 0.05
    """A plan that brings less than this part of the throughput is not worth a change."""
    least_saving: float = 0.1
    """The same of its cost, for a plan that saves."""
    least_marginal: float = 0.05
    """Throughput that one more unit of money brings, against the mean one: below it more is waste."""
    payback: float = 1.0
    """A change must pay back what it costs within this share of what is left of the job. 1: whatever ends it sooner."""
    workers_stay: bool = False
    """Whether workers that are to have another size train on until they have it: where the platform changes running
    ones, or starts their successors first. Otherwise each loses what its successor takes to start."""
    total_cpu: float = 200.0
    """C_total: cores of one job, where nothing else was said."""
    node_cpu: float = 32.0
    """C_max: cores of one worker or server at most."""
    server_cpu: float = 16.0
    """s: cores of one server, once a job has its size."""
    extra_workers: int = 2
    """Low-priority workers beyond the quota, at most, for server CPU that lies idle."""
    busy_server: float = 0.9
    """Used of its CPU: a server above it while sampling gets more."""
    sample_steps: int = 100
    """A sample is over after so many steps..."""
    sample_s: float = 60.0
    """...or after so many seconds."""
    between_changes_s: float = 60.0
    """Between two changes of a job, at least. The start of a sample is none: it ends as above."""
    similar: int | None = None
    """k: past jobs that a warm start looks at; None: as many as the history itself does best with."""
    smoothing: float | None = None
    """mu: weight of the most similar of them; None: what the history itself does best with."""
    steps: StepPolicyConfig = field(default_factory=StepPolicyConfig)
    data_workers: str = "maxtp"
    """Whose data workers get cores first, of the jobs of one brain: "maxtp", "srtf", "fair", the name of a plug-in, or
    `module:function` (`planning.dataworkers.cluster.allocation`)."""
    seed: int = 0
    """For policies that draw."""

    def __post_init__(self) -> None:
        if not math.isfinite(self.rho):
            raise errors.BadInput(f"planning: rho {self.rho:g}; wanted a number")
        for name in ("epsilon", "total_cpu", "node_cpu", "server_cpu", "payback"):
            if not 0 < getattr(self, name) < math.inf:
                raise errors.BadInput(f"planning: {name} {getattr(self, name):g}; wanted a number above 0")
        for name in (
            *("exact_seconds", "exact_options", "least_gain", "least_saving", "least_marginal"),
            *("extra_workers", "sample_steps", "sample_s", "between_changes_s"),
        ):
            if not 0 <= getattr(self, name) < math.inf:
                raise errors.BadInput(f"planning: {name} {getattr(self, name):g}; wanted a number, 0 or more")
        if not 0 < self.busy_server <= 1:
            raise errors.BadInput(f"planning: busy_server {self.busy_server:g}; wanted a share, above 0 and up to 1")
        if self.similar is not None and self.similar < 1:
            raise errors.BadInput(f"planning: similar {self.similar}; wanted 1 or more past jobs, or none to find out")
        if self.smoothing is not None and not 0 < self.smoothing < 1:
            raise errors.BadInput(f"planning: smoothing {self.smoothing:g}; wanted a weight between 0 and 1")
        if not 0 <= self.seed < 1 << 32:
            raise errors.BadInput(f"planning: seed {self.seed}; wanted a whole number from 0 to {(1 << 32) - 1}")


class PlanningStage(StrEnum):
    """Planning stages of a job, in order. A job with a good warm start begins at OPTIMIZING."""

    WAITING = "waiting"
    """Nothing of it runs yet."""
    SAMPLING = "sampling"
    """It runs small, to be measured."""
    OPTIMIZING = "optimizing"
    """It has been measured and gets its size."""
    ADJUSTING = "adjusting"
    """It has its size; what is wrong with it is mended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRules:
    """Planning settings of one job. Without bounds, the job keeps its initial size and is not planned."""

    bounds: ShapeBounds | None = None
    """Shapes that it may have; what a user has fixed is pinned, its least being its most. The quota must be finite."""
    resize: bool = True
    """Whether roles can be held to cores while they run. If not, only numbers of roles are planned, and cores in the
    bounds are what a role is reckoned to take."""
    overlap: bool = False
    """Whether a change may take more than the quota until it is done: on a machine that nobody shares, roles that stay
    need not be held back while others start."""
    config: PlanningConfig = field(default_factory=PlanningConfig)
    stage: PlanningStage = PlanningStage.SAMPLING
    """What it begins with: a sample, or a shape that similar jobs ended with."""
    why: str = "a small start to be measured"
    """Of the shape that it begins with."""
    every_s: float = 2.0
    """Seconds between two questions to the adviser: a decision needs some windows, and costs milliseconds."""
    patience_s: float = 30.0
    """An adviser that has not answered after so long counts as silent."""
    settle_s: float = 3.0
    """Seconds after a change in which nothing is measured: caches fill, slots have just moved."""
    window_s: float = 5.0
    """Seconds of one profile."""
    warm_up_steps: int = 20
    """Of each worker, which do not count."""
    brain: str = ""
    """HOST:PORT of a brain for many jobs; empty: the job plans by itself."""
    brain_secret_file: str = ""
    """File with its secret; empty: where `springtide brain serve` leaves it."""
    brain_tls: str = ""
    """Folder with certificates that a brain with TLS knows; empty: it is spoken to in the clear."""
    history: str = ""
    """File or SQL URL of what past jobs were like; empty: none is kept."""
    key: str = ""
    """By which a brain for many jobs knows this one, from its submission on; empty: by the folder of its run."""
    user: str = ""
    priority: float = 1.0
    """Its user's weight among the jobs of one brain: what its gain counts for where `config.priority` is "given"."""
    features: dict[str, str | float] = field(default_factory=dict)
    """What is known of the job before it begins, such as its script: by it and by what shows later similar jobs are
    found."""

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, float) and not 0 < value < math.inf:
                raise errors.BadInput(f"planning: {each.name} {value:g}; wanted a number above 0")
        if self.warm_up_steps < 0:
            raise errors.BadInput(f"planning: warm_up_steps {self.warm_up_steps}; wanted 0 or more")
        if self.bounds is None:
            return
        quota = self.bounds.quota
        if not math.isfinite(quota.cpu + quota.memory):
            raise errors.BadInput(
                f"planning: a quota of {quota.cpu:g} cores and {quota.memory:g} bytes; wanted numbers, such as the "
                "machine's own"
            )
        least, most = self.bounds.least, self.bounds.most
        if not self.resize and (least.worker_cpu, least.server_cpu) != (most.worker_cpu, most.server_cpu):
            raise errors.BadInput("planning: cores cannot be changed here; wanted bounds whose least is their most")

    @property
    def on(self) -> bool:
        return self.bounds is not None
