"""Pure. Settings of planning, with default values from the papers where a paper gives one."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from springtide import errors
from springtide.domain.core import validation
from springtide.domain.core.shape import Prices, ShapeBounds

Feature = str | float
"""Word or number that describes a job: user, model, tables, data source, batch size..."""


@dataclass(frozen=True, kw_only=True)
class ChangeSettings:
    """Minimum benefit of a change of a job, and the time between changes."""

    least_gain: float = 0.05
    """Minimum gain of a change, as a share of the throughput."""
    least_saving: float = 0.1
    """Minimum saving of a change that reduces cost, as a share of the cost."""
    least_marginal: float = 0.05
    """Smallest throughput per additional unit of cost, as a share of the job's mean throughput per unit of cost.
    Resources that bring less are wasted.
    """
    payback: float = 1.0
    """A change must pay for itself within this share of the job's remaining time. 1 accepts every change that ends the
    job sooner."""
    workers_stay: bool = False
    """True if a resized worker trains until it has its new size, because the platform resizes the worker in place or
    starts its successor first. If False, a resized worker trains nothing while its successor starts.
    """
    between_changes_s: float = 60.0
    """Minimum seconds between two changes of a job. The start of a sample does not count as a change."""


@dataclass(frozen=True, kw_only=True)
class SizeSettings:
    """Sizes of a job and its roles. The cores are from DLRover."""

    total_cpu: float = 200.0
    """C_total: default cores of one job."""
    node_cpu: float = 32.0
    """C_max: maximum cores of one worker or server."""
    server_cpu: float = 16.0
    """s: cores of each server after sampling, when the job gets its planned size."""
    busy_server: float = 0.9
    """While a job is sampled, a server that uses more than this share of its CPU gets more CPU."""


@dataclass(frozen=True, kw_only=True)
class StartSettings:
    """First shape of a job: by similar past jobs, or by a sample. The times are from DLRover."""

    sample_steps: int = 100
    """A sample is complete after this many steps..."""
    sample_s: float = 60.0
    """...or after this many seconds."""
    similar: int | None = None
    """k: number of past jobs that a warm start uses. None means that a backtest on the history determines it."""
    smoothing: float | None = None
    """mu: weight of the most similar past job. None means that a backtest on the history determines it."""


@dataclass(frozen=True, kw_only=True)
class PlanningConfig(ChangeSettings, SizeSettings, StartSettings):
    """All settings of planning. Users set each field by its name."""

    policy: str = "springtide"
    """Policy: a built-in name, a plug-in name, or `module:function`."""
    priority: str = "remaining"
    """Weight of each job's gain: "remaining" (by rho), "remaining_now", "equal", "given" or "waiting"."""
    rho: float = 2.5
    """Exponent rho of a job's weight, 1 / (time left)^rho (DLRover-RM). 0 weighs all jobs equally, larger values favour
    short jobs, and negative values favour long jobs."""
    epsilon: float = 1.0
    """Seconds added to the time left, so that the weight of a job near its end stays finite."""
    exact_seconds: float = 0.5
    """Seconds that the exact solver may take before the greedy answer is used; 0 means greedy only."""
    exact_options: int = 4_000
    """If all jobs together have more candidates than this, the exact solver is not tried."""
    prices: Prices = field(default_factory=Prices)
    data_workers: str = "maxtp"
    """Metric that decides which job's data workers get cores first: "maxtp", "srtf", "fair", a plug-in name, or
    `module:function` (`planning.dataworkers.allocation`)."""

    def __post_init__(self) -> None:
        if not math.isfinite(self.rho):
            raise errors.BadInput(f"planning: rho {self.rho:g}: must be a finite number")
        above_zero = ("epsilon", "total_cpu", "node_cpu", "server_cpu", "payback")
        validation.check_range(self, *above_zero, above=0, of="planning: ")
        shares = ("least_gain", "least_saving", "least_marginal")
        counts = ("exact_seconds", "exact_options", "sample_steps", "sample_s", "between_changes_s")
        validation.check_range(self, *shares, *counts, least=0, of="planning: ")
        validation.check_range(self, "similar", least=1, of="planning: ")
        if not 0 < self.busy_server <= 1:
            raise errors.BadInput(f"planning: busy_server {self.busy_server:g}: must be above 0 and at most 1")
        if self.smoothing is not None and not 0 < self.smoothing < 1:
            raise errors.BadInput(f"planning: smoothing {self.smoothing:g}: must be between 0 and 1")


class PlanningStage(StrEnum):
    """Planning stages of a job, in order. A job with a good warm start begins at OPTIMIZING."""

    WAITING = "waiting"
    """No process of the job runs yet."""
    SAMPLING = "sampling"
    """The job runs with few resources, in order to be measured."""
    OPTIMIZING = "optimizing"
    """The job was measured, and now gets its size."""
    ADJUSTING = "adjusting"
    """The job has its final size. Later changes fix problems."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviserRules:
    """Where the master of a job gets advice: a brain, or its own policy with a history of past jobs."""

    brain: str = ""
    """HOST:PORT of a brain for many jobs; empty means that the job plans on its own."""
    secret_file: str = ""
    """File with the brain's secret; empty means the default location of `springtide brain serve`."""
    tls: str = ""
    """Folder with certificates for a brain with TLS; empty means no encryption."""
    history: str = ""
    """File or SQL URL of past jobs; empty means no history."""
    key: str = ""
    """Key under which the brain knows the job, fixed at submission; empty means the run folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningIdentity:
    """User, priority and features of a job."""

    user: str = ""
    priority: float = 1.0
    """Weight of the job's gain among the jobs of one brain, if `config.priority` is "given"."""
    features: Mapping[str, Feature] = field(default_factory=dict)
    """Features by name, such as the script. Jobs with similar features count as similar."""

    def __post_init__(self) -> None:
        validation.check_range(self, "priority", above=0, of="planning: ")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRules:
    """Planning settings of one job. Without bounds, the job keeps its initial size and is not planned."""

    bounds: ShapeBounds | None = None
    """Bounds of the shapes that the job may have. A value fixed by the user has equal bounds. The quota must be
    finite."""
    resize: bool = True
    """True if the cores of running roles can be limited. Otherwise, planning covers only the number of roles, and the
    bounds hold the assumed cores of each role.
    """
    overlap: bool = False
    """True if the job may exceed its quota during a change. On a machine without other jobs, the remaining roles then
    keep their resources while new roles start.
    """
    config: PlanningConfig = field(default_factory=PlanningConfig)
    stage: PlanningStage = PlanningStage.SAMPLING
    """First stage of the job: a sample, or the final shape of similar jobs."""
    why: str = "a small start for measurements"
    """Reason for the first shape."""
    every_s: float = 2.0
    """Seconds between two requests to the adviser. A decision takes milliseconds, but needs some windows of
    measurements."""
    patience_s: float = 30.0
    """Seconds without an answer after which the adviser counts as unavailable."""
    settle_s: float = 3.0
    """Seconds after a change that are not measured, because caches still fill and slots still move."""
    window_s: float = 5.0
    """Length of the window of one profile, in seconds."""
    warm_up_steps: int = 20
    """Number of first steps of each worker that are not measured."""
    adviser: AdviserRules = field(default_factory=AdviserRules)
    identity: PlanningIdentity = field(default_factory=PlanningIdentity)

    def __post_init__(self) -> None:
        times = ("every_s", "patience_s", "settle_s", "window_s")
        validation.check_range(self, *times, above=0, unit="seconds", of="planning: ")
        validation.check_range(self, "warm_up_steps", least=0, of="planning: ")
        if self.bounds is None:
            return
        quota = self.bounds.quota
        if not math.isfinite(quota.cpu + quota.memory):
            raise errors.BadInput(
                f"planning: a quota of {quota.cpu:g} cores and {quota.memory:g} bytes; give finite numbers such as the "
                "machine's own"
            )
        least, most = self.bounds.least, self.bounds.most
        if not self.resize and (least.worker_cpu, least.server_cpu) != (most.worker_cpu, most.server_cpu):
            raise errors.BadInput(
                "planning: cores cannot be changed here; the least and the most cores of the bounds must be equal"
            )

    @property
    def on(self) -> bool:
        return self.bounds is not None
