"""Pure. What to do about a server that was lost: start it again and restore its slots, or say why that cannot be.

In: `job.state` with what `job.recovery.recovery` says of the process. Out: `Relaunch` or `GiveUp`. The rules are those
of all roles, but the slots of a server must come from somewhere: before the first checkpoint is complete all begins
anew, and in a job that keeps none nothing can be done. Next: the server's new life is told which checkpoint to read
(`master.servers.recovery`); when it is ready the book goes back.
"""

from dataclasses import dataclass, field

from springtide.domain.spec.job_spec import Blame, JobPhase, JobSpec
from springtide.job.core.nodes import RoleNode
from springtide.job.recovery.bsp_breaks import GroupBreaks
from springtide.job.recovery.recovery import FailJob, Relaunch


@dataclass(slots=True, kw_only=True)
class RestorePoint:
    """What a job has to fall back on."""

    saved: int | None = None
    """Number of the newest complete checkpoint."""
    origin: int = 0
    """Number of another run's checkpoint that this one went on from: good until it has one of its own."""
    placed: bool = False
    """Whether the servers have been given their slots: before that a server holds nothing."""
    lost: dict[int, int] = field(default_factory=dict)
    """How often each server was lost."""
    begun_anew: int = 0
    """How often all began anew, for want of a checkpoint."""
    breaks: GroupBreaks = field(default_factory=GroupBreaks)
    """What falling back has cost a bsp group so far."""

    @property
    def known(self) -> bool:
        """Whether there is any checkpoint to go back to."""
        return self.saved is not None or self.origin != 0

    @property
    def newest(self) -> str:
        """That one, for people."""
        own = f"checkpoint {self.saved}"
        return own if self.saved is not None else f"checkpoint {self.origin}, which the job went on from"


def may_begin_anew(spec: JobSpec, phase: JobPhase) -> bool:
    """Whether the loss of all that was trained is better answered by training it again than by a failure."""
    return spec.checkpoints.on and phase is not JobPhase.DRAINING


def after_loss(verdict: Relaunch | FailJob, safety: RestorePoint, *, trained: bool, saves: bool) -> Relaunch | FailJob:
    """The verdict on a lost server. `trained`: a worker may have written to it; `saves`: there will be a checkpoint."""
    if not trained or isinstance(verdict, FailJob) or safety.known or saves:
        return verdict
    error = f"{verdict.why}: the rows it held are lost, and with them the job: it had no complete checkpoint yet"
    return FailJob(error=error, blame=Blame.INFRASTRUCTURE)


def relaunch_text(node: RoleNode, safety: RestorePoint, after_s: float, *, trained: bool) -> str:
    """What is decided, for the story. The node is in its new life already."""
    pause = f" after {after_s:g} s" if after_s else ""
    source = f"; its slots come from {safety.newest}" if trained else ""
    return f"relaunch {node.role} as incarnation {node.incarnation}{pause}{source}"
