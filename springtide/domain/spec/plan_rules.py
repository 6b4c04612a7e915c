"""Pure. Whether and how a job plans for itself: between which shapes, by which settings, by whose advice.

In: the command line or a test, by `domain.spec.job_spec.JobSpec`. Next: `master.autoscale.loop` plans by them,
`job.scaling.plan` carries plans out.
"""

import math
from dataclasses import dataclass, field, fields

from springtide import errors
from springtide.domain.core.shape import ShapeBounds
from springtide.domain.core.stages import PlanningStage
from springtide.domain.spec.planning_config import PlanningConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRules:
    """How a job finds its size. Without bounds it has the size that it was given, and nobody plans."""

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
